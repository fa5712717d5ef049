"""The kernel's log and its counters of OOM kills, in the forms that kernels and containers give them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuctl.node import oom_kills
from gpuctl.node.kernel import DEVICE, KernelLog, Line, OomKill, XidReport, line_of, pci_of, report_of
from gpuctl.node.oom_kills import AROUND, EVERYTHING, MACHINE, OWN, RECENT_S, OomCounters


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ("6,1234,32449841,-;NVRM: hello; and more\n SUBSYSTEM=pci\n", Line(32449841, "NVRM: hello; and more")),
        ("3,1,5,c,caller=T12;short", Line(5, "short")),
        ("<6>[   32.449841] NVRM: hello", Line(32449841, "NVRM: hello")),
        ("<3>[123456.000007] x", Line(123456000007, "x")),
        ("12,7,99,-;somebody's own line", None),  # of facility 1: a program wrote it
        ("<14>[    1.000000] somebody's own line", None),
        ("<6>a kernel without stamps", None),
        ("", None),
    ],
)
def test_lines(record: str, line: Line | None) -> None:
    assert line_of(record) == line


@pytest.mark.parametrize(
    "text",
    [
        "Memory cgroup out of memory: Killed process 812 (python3) total-vm:76024kB, anon-rss:65236kB, UID:0",
        "Out of memory: Killed process 812 (pt_main_thread) total-vm:76024kB, anon-rss:65236kB",
        "Out of memory: Kill process 812 (ray::IDLE) score 905 or sacrifice child",
        "Memory cgroup out of memory: Kill process 812 (a (b) c) score 1974 or sacrifice child",
        "Out of memory (oom_kill_allocating_task): Killed process 812 (python)",
    ],
)
def test_oom_kills(text: str) -> None:
    report = report_of(Line(1, text))
    assert isinstance(report, OomKill) and report.pid == 812


@pytest.mark.parametrize(
    ("text", "number", "pci", "pid"),
    [
        ("NVRM: Xid (PCI:0000:06:00): 31, pid=895, name=bad, channel 0x0000000a, intr 0", 31, "0:6:0", 895),
        (
            "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79,
            "0:c1:0",
            None,
        ),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13", 145, "18:1:0", None),
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=1234, Row Remapper: New row marked for remapping", 63, "0:3b:0", 1234),
    ],
)
def test_xids(text: str, number: int, pci: str, pid: int | None) -> None:
    line = Line(1, text)
    assert report_of(line) == XidReport(line, number, pci, pid)


def test_nothing_else_is_reported() -> None:
    for text in ("oom_reaper: reaped process 812 (python3)", "NVRM: loading NVIDIA UNIX Open Kernel Module", ""):
        assert report_of(Line(1, text)) is None


def test_addresses_of_the_log_and_of_nvml_are_one() -> None:
    assert pci_of("0000:C1:00") == pci_of("00000000:C1:00.0") == pci_of("00000000:c1:00.0")
    assert pci_of("0000:C1:00") != pci_of("0001:C1:00")


def test_it_is_printed_as_dmesg_does() -> None:
    assert str(Line(32449841, "text")) == "[   32.449841] text"


def test_a_log_that_is_closed_to_us_says_nothing(tmp_path: Path) -> None:
    log = KernelLog(device=str(tmp_path / "none"))
    assert not log.cheap and log.read() == []
    log.close()


def test_what_a_program_writes_there_is_not_the_kernels() -> None:
    if not os.access(DEVICE, os.W_OK):
        pytest.skip("only root may write to the kernel's log")
    log = KernelLog()
    if not log.cheap:
        pytest.skip("the kernel's log is closed here")
    Path(DEVICE).write_text("<12>gpuctl's tests: NVRM: Xid (PCI:0000:fe:1f): 79, GPU has fallen off the bus.")
    assert not [report for report in log.read() if isinstance(report, XidReport)]
    log.close()


# ── counters ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_this_machine_is_counted() -> None:
    counters = OomCounters()
    counters.look(os.getpid(), 1.0)
    assert counters.rises(1.0) == []
    assert counters.complete == (oom_kills.read(MACHINE) is not None)


class Counted:
    """Counter files of a test's own, in place of the kernel's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = {counts: folder / name for counts, name in ((OWN, "own"), (AROUND, "around"), (EVERYTHING, "all"))}
        for counts in self.files:
            self.count(counts, 3)
        pairs = [(str(path), counts) for counts, path in self.files.items()]
        monkeypatch.setattr(oom_kills, "_around", lambda *_: iter(pairs))

    def count(self, counts: str, value: int) -> None:
        self.files[counts].write_text(f"low 0\noom {value + 9}\noom_kill {value}\noom_group_kill 0\n")


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(tmp_path, monkeypatch)


def test_rises_are_told_from_the_narrowest_to_the_widest(counted: Counted) -> None:
    counters = OomCounters()
    counters.look(1, 10.0)
    counted.count(EVERYTHING, 5)
    counted.count(OWN, 4)
    counters.look(1, 20.0)
    own, everything = counters.rises(21.0)
    assert own.own and "oom_kill 3 → 4" in own.text
    assert not everything.own and "oom_kill 3 → 5" in everything.text and "neighbours too" in everything.text


def test_a_rise_of_long_ago_counts_only_where_it_counts_the_job_alone(counted: Counted) -> None:
    counters = OomCounters()
    counters.look(1, 10.0)
    counted.count(EVERYTHING, 4)
    counted.count(OWN, 4)
    counters.look(1, 20.0)
    assert [rise.own for rise in counters.rises(20.0 + RECENT_S + 1)] == [True]


def test_what_was_kept_at_the_start_is_what_it_has_risen_from(counted: Counted) -> None:
    kept = OomCounters()
    kept.look(1, 10.0)
    counted.count(OWN, 4)
    later = OomCounters(kept.values())
    later.look(1, 50.0)
    assert [rise.own for rise in later.rises(50.0)] == [True]


def test_a_kernel_that_does_not_count(tmp_path: Path) -> None:
    old = tmp_path / "memory.oom_control"
    old.write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert oom_kills.read(str(old)) is None
    assert oom_kills.read(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("mount", "path", "folder"),
    [
        (("", "/"), "/a/b", "/a/b"),
        (("", "/"), "/", ""),
        (("", "/docker/1f"), "/docker/1f", ""),  # a container without a cgroup namespace
        (("", "/docker/1f"), "/docker/1f/a/b", "/a/b"),
        (("", "/"), "/../other", ""),  # the process is outside this namespace's root
        (("", "/"), "/gone", ""),  # mounted from somewhere else: the root is what there is
    ],
)
def test_where_a_cgroup_lies(tmp_path: Path, mount: tuple[str, str], path: str, folder: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert oom_kills._below((str(tmp_path), mount[1]), path) == f"{tmp_path}{folder}"
