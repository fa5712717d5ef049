from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.node.journal import Journal
from gpuctl.node.leases import Leases, Taken
from gpuctl.node.machine import identity
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from tests.records.conftest import NewRun

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def leases(node: NodeSpec) -> Leases:
    return Leases(node)


def take(leases: Leases, run: str, *uuids: str, share: bool = False) -> None:
    with leases.locked():
        leases.take(uuids, run, share)


def holders(leases: Leases) -> dict[str, list[str]]:
    return {uuid: [lease.run for lease in held] for uuid, held in leases.held().items()}


def test_two_runs_never_hold_the_same_gpu(leases: Leases, new_run: NewRun) -> None:
    new_run("a-1"), new_run("b-1")
    take(leases, "a-1", "GPU-0", "GPU-1")
    with pytest.raises(Taken) as taken:
        take(leases, "b-1", "GPU-1", "GPU-2")
    assert [lease.run for lease in taken.value.leases] == ["a-1"]
    assert "a-1" in str(taken.value) and "a-1" in taken.value.hint
    assert holders(leases) == {"GPU-0": ["a-1"], "GPU-1": ["a-1"]}, "nothing of a refused take remains"
    take(leases, "b-1", "GPU-2")
    leases.release("a-1")
    leases.release("a-1")
    assert holders(leases) == {"GPU-2": ["b-1"]}


def test_taking_again_is_the_same_lease_or_another_set(leases: Leases, new_run: NewRun) -> None:
    new_run("a-1")
    take(leases, "a-1", "GPU-0")
    take(leases, "a-1", "GPU-1", "GPU-2")
    assert holders(leases) == {"GPU-1": ["a-1"], "GPU-2": ["a-1"]}


def test_sharing_takes_both(leases: Leases, new_run: NewRun) -> None:
    for run in ("a-1", "b-1", "c-1"):
        new_run(run)
    take(leases, "a-1", "GPU-0", share=True)
    take(leases, "b-1", "GPU-0", share=True)
    assert holders(leases) == {"GPU-0": ["a-1", "b-1"]}
    with pytest.raises(Taken) as taken:
        take(leases, "c-1", "GPU-0")
    assert len(taken.value.leases) == 2
    with pytest.raises(Taken):
        take(leases, "c-1", "GPU-0", share=False)


def test_a_lease_ends_with_its_run_and_comes_back_with_it(leases: Leases, new_run: NewRun) -> None:
    folder = new_run("a-1")
    take(leases, "a-1", "GPU-0")
    journal = Journal(folder.journal)
    journal.append("run_finished", state="failed")
    assert holders(leases) == {}
    journal.append("relaunching", params={})
    assert holders(leases) == {"GPU-0": ["a-1"]}


def test_a_lease_does_not_end_because_nobody_supervises(leases: Leases, new_run: NewRun) -> None:
    folder = new_run("a-1")
    take(leases, "a-1", "GPU-0")
    assert not folder.supervised()
    assert holders(leases) == {"GPU-0": ["a-1"]}


def test_a_caller_that_died_before_its_run_existed_holds_nothing_for_long(
    leases: Leases, monkeypatch: pytest.MonkeyPatch, new_run: NewRun
) -> None:
    new_run("other-1")
    take(leases, "a-1", "GPU-0")
    assert holders(leases) == {"GPU-0": ["a-1"]}
    monkeypatch.setattr("gpuctl.node.leases.UNBORN_S", 0.0)
    assert holders(leases) == {}


def test_a_lease_ends_with_this_life_of_the_machine(node: NodeSpec, leases: Leases, new_run: NewRun) -> None:
    new_run("a-1")
    take(leases, "a-1", "GPU-0")
    for restarted in (replace(identity(), boot_id="another"), replace(identity(), init_start=1 << 40)):
        assert holders(Leases(node, restarted)) == {}


def test_the_queue_is_in_order_of_creation_and_only_for_the_same_gpus(leases: Leases) -> None:
    leases.enqueue("late-1", ["GPU-0", "GPU-1"], 2, "2026-01-01T00:00:02.000Z")
    leases.enqueue("early-1", ["GPU-0"], 1, "2026-01-01T00:00:01.000Z")
    leases.enqueue("other-1", ["GPU-7"], 1, "2026-01-01T00:00:00.000Z")
    assert [leases.place(run) for run in ("early-1", "late-1", "other-1", "none-1")] == [1, 2, 1, None]
    assert [ticket.run for ticket in leases.ahead("new-1", ["GPU-1"])] == ["late-1"]
    leases.enqueue("early-1", ["GPU-0"], 1, "2026-01-01T00:00:01.000Z")
    assert leases.place("late-1") == 2
    leases.leave("early-1")
    leases.leave("early-1")
    assert leases.place("late-1") == 1


ENQUEUE = """
import sys; sys.path.insert(0, sys.argv[1])
from gpuctl.node.leases import Leases; from gpuctl.wire.nodespec import NodeSpec; import json
Leases(NodeSpec.from_json(json.loads(sys.argv[2]))).enqueue("dead-1", ["GPU-0"], 1, "2026")
"""


def test_one_who_died_in_the_queue_lets_others_pass(node: NodeSpec, leases: Leases) -> None:
    subprocess.run([sys.executable, "-c", ENQUEUE, ROOT, json.dumps(node.to_json())], check=True)
    leases.enqueue("a-1", ["GPU-0"], 1, "2027")
    assert leases.place("a-1") == 1


def test_the_folder_is_everyones_and_the_records_readable(leases: Leases) -> None:
    old = os.umask(0o077)
    try:
        take(leases, "a-1", "GPU-0")
    finally:
        os.umask(old)
    assert os.stat(leases.folder).st_mode & 0o7777 == 0o1777
    (record,) = Path(leases.folder).iterdir()
    assert record.stat().st_mode & 0o777 == 0o644


GOOD = {"run": "a-1", "gpus": ["GPU-0"], "machine": identity().to_json(), "state_dir": "/nonexistent", "mono_s": 1.0}
WAITS = {**GOOD, "count": 1, "since": "2026", "pid": os.getpid(), "start": None}
SPOILT = [
    ("run", [None, 1, "A B", "../x", ["a-1"]]),
    ("gpus", [None, 3, "GPU-0", [[1]], [None], {"GPU-0": 1}]),
    ("machine", [None, [], {}, "here", {"host": 1, "boot_id": 2}, {**identity().to_json(), "init_start": [1]}]),
    ("state_dir", [None, 1, "", "below/here", ["/"]]),
    ("mono_s", [None, "x", [1], True]),
    ("share", [None, "no", [1]]),
]
SPOILT_TICKETS = [
    ("count", [None, "x", [1]]),
    ("since", [None, 3, [1]]),
    ("pid", [None, "1", 1.5, -1, 0, 1 << 40, [1]]),
    ("start", ["x", [1]]),
]
NO_OBJECTS = ["", "{", "[]", "null", "1", '"x"', "[" * 60_000, "9" * 60_000, "\0" * 100, '{"run": 1}']


def left(leases: Leases, name: str, content: object) -> None:
    (Path(leases.folder) / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_only_a_whole_record_counts(leases: Leases) -> None:
    left(leases, "a-1.1000.lease", GOOD)
    left(leases, "a-1.1000.ticket", WAITS)
    assert holders(leases) == {"GPU-0": ["a-1"]}
    assert [ticket.run for ticket in leases.tickets()] == ["a-1"]


@pytest.mark.parametrize("content", NO_OBJECTS)
def test_what_is_no_record_is_passed_over(leases: Leases, content: str) -> None:
    left(leases, "a-1.1000.lease", content)
    left(leases, "a-1.1000.ticket", content)
    assert leases.held() == {} and leases.tickets() == []


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in (*SPOILT, *SPOILT_TICKETS) for value in values], ids=repr
)
def test_a_record_with_one_field_that_is_none_is_none(leases: Leases, key: str, value: object) -> None:
    left(leases, "a-1.1000.ticket", {**WAITS, key: value})
    assert leases.tickets() == []
    if key in GOOD or key == "share":
        left(leases, "a-1.1000.lease", {**GOOD, key: value})
        assert leases.held() == {}


def test_a_record_without_a_field_is_none(leases: Leases) -> None:
    for key in GOOD:
        left(leases, f"{key.replace('_', '-')}.1000.lease", {**GOOD, key: None})
        left(leases, "b-1.1000.lease", {other: value for other, value in GOOD.items() if other != key})
        assert leases.held() == {}, key


def test_what_lies_in_the_folder_and_is_no_file_is_passed_over(leases: Leases) -> None:
    folder = Path(leases.folder)
    for ending in ("lease", "ticket"):
        (folder / f"a-1.1000.{ending}").mkdir()
        (folder / f"link.{ending}").symlink_to("/etc/passwd")
        os.mkfifo(folder / f"pipe.{ending}")
        socket.socket(socket.AF_UNIX).bind(str(folder / f"socket.{ending}"))
    before = len(os.listdir("/proc/self/fd"))
    assert leases.held() == {} and leases.tickets() == []
    assert len(os.listdir("/proc/self/fd")) == before, "nothing stays open"
    take(leases, "b-1", "GPU-0")
    assert holders(leases) == {"GPU-0": ["b-1"]}


class Claim:
    """A record that says that its run's journal is in a folder where its writer put something else."""

    def __init__(self, leases: Leases, folder: Path) -> None:
        self.runs = folder / "runs"
        self.journal = self.runs / "x-1" / "journal.jsonl"
        self.journal.parent.mkdir(parents=True)
        self.record = Path(leases.folder) / "x-1.1000.lease"
        self.record.write_text(json.dumps({**GOOD, "run": "x-1", "state_dir": str(folder)}))

    def ended(self) -> None:
        journal = Journal(str(self.journal))
        journal.append("run_created")
        journal.append("run_finished", state="failed")
        journal.close()


@pytest.fixture
def claim(leases: Leases, tmp_path: Path) -> Claim:
    return Claim(leases, tmp_path / "theirs")


def test_what_a_record_says_of_its_journal_is_believed_of_a_plain_file(leases: Leases, claim: Claim) -> None:
    claim.ended()
    assert leases.held() == {}


@pytest.mark.parametrize("what", ["pipe", "zeros", "link to a file", "folder", "nothing"])
@pytest.mark.timeout(20)
def test_a_journal_that_is_no_plain_file_holds_nobody_up(leases: Leases, claim: Claim, what: str) -> None:
    if what == "pipe":
        os.mkfifo(claim.journal)
    elif what == "zeros":
        claim.journal.symlink_to("/dev/zero")
    elif what == "link to a file":
        claim.ended()
        claim.journal.rename(claim.runs / "another")
        claim.journal.symlink_to(claim.runs / "another")
    elif what == "folder":
        claim.journal.mkdir()
    assert holders(leases) == {"GPU-0": ["x-1"]}
    take(leases, "b-1", "GPU-1")


def test_of_a_huge_journal_only_the_end_is_read(leases: Leases, claim: Claim) -> None:
    with claim.journal.open("wb") as file:
        file.truncate(1 << 40)
    began = time.process_time()
    assert holders(leases) == {"GPU-0": ["x-1"]}
    with claim.journal.open("ab") as file:
        file.write(b'\n{"seq": 1, "time": "", "type": "run_finished", "state": "failed"}\n')
    assert leases.held() == {}
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    "event", [{}, {"time": ""}, {"time": "", "state": []}, {"time": "", "state": "failed", "seq": "x"}], ids=repr
)
def test_a_journal_of_other_words_ends_nothing(leases: Leases, claim: Claim, event: dict[str, object]) -> None:
    claim.journal.write_text(json.dumps({"seq": 1, "type": "run_finished", **event}) + "\n")
    assert holders(leases) == {"GPU-0": ["x-1"]}


def test_a_journal_that_is_not_its_owners_ends_nothing(leases: Leases, claim: Claim) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    claim.ended()
    os.chown(claim.journal, 1000, -1)
    assert holders(leases) == {"GPU-0": ["x-1"]}
    os.chown(claim.record, 1000, -1)
    assert leases.held() == {}


def test_no_journal_is_read_under_the_lock(leases: Leases, claim: Claim) -> None:
    with leases.locked():
        claim.ended()
        assert holders(leases) == {"GPU-0": ["x-1"]}, "as it was found before"
    with leases.locked():
        claim.journal.unlink()
        assert leases.held() == {}, "as it was found before"
        claim.record.write_text(claim.record.read_text().replace("GPU-0", "GPU-3"))
        assert holders(leases) == {"GPU-3": ["x-1"]}, "written anew since: held"


def test_a_name_that_another_account_took_is_named(leases: Leases) -> None:
    """In a sticky folder nobody but its owner can move it away; a folder at that name does as well."""
    for kind in ("lease", "ticket"):
        (Path(leases.folder) / f"a-1.{os.getuid()}.{kind}").mkdir()
    with pytest.raises(Refusal) as refusal:
        take(leases, "a-1", "GPU-0")
    assert refusal.value.code == 4
    assert f"a-1.{os.getuid()}.lease" in refusal.value.what and "ls -ld" in refusal.value.hint
    with pytest.raises(Refusal, match="ticket"):
        leases.enqueue("a-1", ["GPU-0"], 1, "2026")
    leases.release("a-1")
    leases.leave("a-1")
    assert len(os.listdir(leases.folder)) == 2, "nothing half written stays"


def test_nobody_can_foresee_the_name_of_what_is_written_aside(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (names.append(old), rename(old, new)))
    take(leases, "a-1", "GPU-0")
    take(leases, "a-1", "GPU-0")
    assert len(set(names)) == 2


def test_renewing_keeps_a_lease_and_a_ticket_young(leases: Leases) -> None:
    take(leases, "a-1", "GPU-0")
    leases.enqueue("a-1", ["GPU-1"], 1, "2026")
    take(leases, "other-1", "GPU-7")
    for path in Path(leases.folder).iterdir():
        os.utime(path, (1.0, 1.0))
    leases.renew("a-1")
    leases.renew("none-1")
    young = {path.name.partition(".")[0] for path in Path(leases.folder).iterdir() if path.stat().st_mtime > 1.0}
    old = {path.name.partition(".")[0] for path in Path(leases.folder).iterdir() if path.stat().st_mtime == 1.0}
    assert (young, old) == ({"a-1"}, {"other-1"})
    assert holders(leases) == {"GPU-0": ["a-1"], "GPU-7": ["other-1"]}


def test_a_link_in_place_of_the_folder_is_refused(node: NodeSpec, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o777)
    os.symlink(tmp_path / "elsewhere", node.lock_dir)
    with pytest.raises(Refusal) as refusal:
        Leases(node)
    assert refusal.value.code == 4 and node.lock_dir in refusal.value.what


def test_where_the_folder_cannot_be_made_all_accounts_agree_on_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    node = NodeSpec("n", state_dir=str(tmp_path / "state"), lock_dir=str(tmp_path / "file/locks"))
    first = Leases(node, fallback_in=str(tmp_path / "tmp"))
    assert first.folder.startswith(str(tmp_path / "tmp"))
    (tmp_path / "file").unlink()  # now it could be made; but another account uses the other already
    assert Leases(node, fallback_in=str(tmp_path / "tmp")).folder == first.folder


def test_a_short_lock_that_is_never_let_go_is_named(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuctl.node.leases.LOCK_DEADLINE_S", 0.05)
    with leases.locked(), pytest.raises(Refusal) as refusal, leases.locked():
        pass
    assert leases.folder in refusal.value.what and "fuser" in refusal.value.hint
