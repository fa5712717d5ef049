"""Who has the device files open: the same by fuser and by /proc."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.node import holders as module
from gpuctl.node.holders import by_fuser, by_proc, container, described, device_files, holders, protected
from gpuctl.node.processes import Process, ProcessId, find
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import DeviceProcess, DeviceSample
from tests.reaper.parts import id_of, started
from tests.waiting import wait_until

MAPS = """if True:
    import ctypes, os, sys, time
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open(sys.argv[1], os.O_RDONLY)
    assert libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0)) not in (None, 2**64 - 1)
    os.close(fd)
    time.sleep(60)
"""
"""Has the file mapped, as CUDA has, and not open."""


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "dev" / "nvidia0"
    path.parent.mkdir()
    path.write_bytes(b"x" * 4096)
    return path


def pattern(device: Path) -> list[str]:
    return [f"{device.parent}/nvidia*"]


@pytest.mark.skipif(shutil.which("fuser") is None, reason="fuser is not installed")
def test_fuser_and_proc_find_the_same(device: Path, hostile: str) -> None:
    other = device.with_name("nvidia1")
    other.touch()
    with (
        started([hostile, "stay", str(device)]) as opened,
        started([hostile, "stay", str(other)]) as second,
        started([sys.executable, "-c", MAPS, str(device)]) as mapped,
        started([hostile, "stay", "/dev/null"]),
    ):
        expected = {opened.pid, second.pid, mapped.pid}
        files = device_files(pattern(device))
        wait_until(lambda: set(by_proc(files)) == expected)
        assert by_fuser(files) == expected
        found = {opened.pid: {str(device)}, second.pid: {str(other)}, mapped.pid: {str(device)}}
        assert by_proc(files) == found == holders(pattern(device))


def test_without_fuser_proc_answers(device: Path, hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with started([hostile, "stay", str(device)]) as opened:
        wait_until(lambda: holders(pattern(device)) == {opened.pid: {str(device)}})


def test_a_fuser_that_hangs_is_not_waited_for(
    device: Path, hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuser = tmp_path / "fuser"
    fuser.write_text("#!/bin/sh\nexec sleep 60\n")
    fuser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(module, "FUSER_DEADLINE_S", 0.2)
    with started([hostile, "stay", str(device)]) as opened:
        wait_until(lambda: opened.pid in holders(pattern(device)))


def test_only_stdout_of_fuser_counts(device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuser = tmp_path / "fuser"
    fuser.write_text("#!/bin/sh\necho 'Cannot stat file /proc/1234/fd/5' >&2\nprintf ' 77  88' \nexit 1\n")
    fuser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert by_fuser(device_files(pattern(device))) == {77, 88}


def test_no_files_have_no_holders(tmp_path: Path) -> None:
    assert holders([f"{tmp_path}/nvidia*"]) == {}
    (tmp_path / "nvidia-caps").mkdir()
    assert holders([f"{tmp_path}/nvidia*"]) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="making device files needs root")
def test_another_node_of_the_same_device_counts(tmp_path: Path, hostile: str) -> None:
    """What a container has below its own /dev."""
    (tmp_path / "inside").mkdir()
    outer, inner = tmp_path / "nvidia0", tmp_path / "inside" / "nvidia0"
    for path in (outer, inner):
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with started([hostile, "stay", str(inner)]) as opened:
        wait_until(lambda: by_proc(device_files([str(outer)])) == {opened.pid: {str(outer)}})


def process(*argv: str, comm: str = "", pid: int = 999_999_999) -> Process:
    return Process(ProcessId(pid, 1), 1, "S", comm or argv[0][:15], 0, pid, 1, argv)


def test_protected_by_whole_names_not_by_cut_ones() -> None:
    assert protected(process("/usr/bin/nvidia-persistenced", "--verbose"))
    assert protected(process("nvidia-cuda-mps-server"))
    assert protected(process("/usr/lib/xorg/Xorg", ":0"))
    assert protected(Process(ProcessId(999_999_999, 1), 1, "S", "nvidia-cuda-mps", 0, 1, 1, ()))  # all hidden but this
    assert not protected(process("python3", "train.py", comm="nvidia-cuda-mps"))
    assert not protected(process("nvidia-persistenced-exporter"))
    assert protected(process("/opt/site/keepalive"), ["keepalive"]) and not protected(process("/opt/site/keepalive"))


def test_protected_by_the_executable_whatever_argv_says(tmp_path: Path) -> None:
    program = tmp_path / "nv-hostengine"
    shutil.copy("/bin/sleep", program)
    with started(["/bin/bash", "-c", f"exec -a innocent {program} 60"]) as running:
        found = wait_until(lambda: (now := find(running.pid)) and now.argv[:1] == ("innocent",) and now)
        assert protected(found)


def test_described_joins_files_and_nvml(device: Path, hostile: str) -> None:
    node = NodeSpec("n", devices=pattern(device))
    with started([hostile, "stay", str(device)]) as opened, started([hostile, "stay"]) as named:
        devices = [
            DeviceSample(0, "a", processes=[DeviceProcess(named.pid, 700), DeviceProcess(999_999_999, 50)]),
            DeviceSample(1, "b", processes=[DeviceProcess(named.pid, 300)]),
            DeviceSample(2, "c", processes=None),
        ]
        wait_until(lambda: opened.pid in holders(pattern(device)))
        found = {one.pid: one for one in described(node, devices, {named.pid: "run-1"})}
        assert set(found) == {opened.pid, named.pid}
        assert (found[named.pid].gpus, found[named.pid].used_mib, found[named.pid].ours) == ([0, 1], 1000, "run-1")
        assert (found[opened.pid].gpus, found[opened.pid].used_mib, found[opened.pid].ours) == ([], None, None)
        assert found[opened.pid].devices == [str(device)] and found[opened.pid].start == id_of(opened.pid).start
        assert found[opened.pid].command == f"{hostile} stay {device}"
        assert described(node, devices, {}, apart=[opened.pid, named.pid]) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("0::/lxc/101/ns/init.scope", "101"),
        ("0::/lxc.payload.102/system.slice", "102"),
        ("0::/system.slice/docker-0123456789abcdef0123.scope", "0123456789ab"),
        ("4:memory:/docker/fedcba98765432100123", "fedcba987654"),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
    ],
)
def test_containers_are_named_by_their_control_group(line: str, name: str | None) -> None:
    match = module._CONTAINER.search(line)
    assert (match and (match.group("lxc") or match.group("id"))) == name


def test_a_process_that_is_gone_is_in_no_container() -> None:
    done = subprocess.Popen(["/bin/true"])
    done.wait()
    assert container(done.pid) is None
