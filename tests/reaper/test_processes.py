"""Processes by pid and start time, and signals that hit nobody else."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.node import processes
from gpuctl.node.processes import ProcessId, alive, children, environ, find, scan
from tests.parts.gpus import REPOSITORY
from tests.reaper.parts import started
from tests.waiting import wait_until

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def test_finds_what_it_is() -> None:
    me = find(os.getpid())
    assert me is not None
    assert me.id.pid == os.getpid() and me.ppid == os.getppid()
    assert me.session == os.getsid(0) and me.uid == os.geteuid() and me.alive
    assert me in scan()


def test_names_with_brackets_and_newlines_are_read(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b\nc"
    shutil.copy("/bin/sleep", program)
    with started([str(program), "60"]) as process:
        found = wait_until(lambda: (now := find(process.pid)) and now.argv and now.argv[0] == str(program) and now)
        assert found.comm == "a) S 1 (b\nc" and found.ppid == os.getpid() and found.argv == (str(program), "60")


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen(["/bin/true"])
    found = wait_until(lambda: (now := find(process.pid)) and now.state == "Z" and now)
    assert not found.alive and not alive(found.id) and found not in [one for one in scan() if one.alive]
    assert not processes.signal(found.id, signal.SIGTERM)
    process.wait()
    assert find(process.pid) is None and not alive(found.id)


def test_a_process_whose_leading_thread_has_ended_lives(hostile: str) -> None:
    with started([hostile, "leader"], env={"WHO": "me"}) as process:
        found = wait_until(lambda: (now := find(process.pid)) and now.state == "Z" and now)
        assert found.alive and environ(process.pid) == {"WHO": "me"}
        assert processes.signal(found.id, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_kernel_threads_do_not_count() -> None:
    assert find(2) is None
    assert 2 not in [process.id.pid for process in scan()]


@pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "plain"])
def test_a_signal_goes_to_the_very_process(monkeypatch: pytest.MonkeyPatch, pidfd: bool) -> None:
    if not pidfd:

        def no_such_call(number: int, *_: int) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(processes, "_syscall", no_such_call)
    with started(SLEEP) as process:
        found = find(process.pid)
        assert found is not None
        earlier = ProcessId(process.pid, found.id.start - 1)
        assert not processes.signal(earlier, signal.SIGKILL) and alive(found.id) and not alive(earlier)
        assert processes.signal(found.id, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert not processes.signal(found.id, signal.SIGTERM)


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    me = find(os.getpid())
    assert me is not None
    for _ in range(10):
        assert processes.signal(me.id, 0)
        assert not processes.signal(ProcessId(me.id.pid, 1), signal.SIGKILL)
        environ(os.getpid())
    assert len(os.listdir("/proc/self/fd")) == before


def test_children_of_every_thread() -> None:
    code = (
        "import os, subprocess, threading, time\n"
        "start = lambda: os.write(1, b'%d\\n' % subprocess.Popen(['/bin/sleep', '60']).pid) and time.sleep(60)\n"
        "threading.Thread(target=start, daemon=True).start(); start()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = {int(process.stdout.readline()), int(process.stdout.readline())}
    try:
        assert set(children(process.pid)) == pids
    finally:
        for pid in (process.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert children(process.pid) == []


def test_the_environment_is_what_it_was_started_with() -> None:
    env = {"EMPTY": "", "LINES": "a\nb=c", "ÜNI": "ö"}
    with started(["/bin/sleep", "60"], env=env) as process:
        wait_until(lambda: environ(process.pid) == env)  # in the middle of an exec there is none yet
    assert environ(process.pid) is None


def pythons() -> list[str]:
    """Every CPython from 3.8 on that this machine has."""
    names = [f"python3.{minor}" for minor in range(8, 16)]
    found = {found for name in names if (found := shutil.which(name))}
    found |= {str(path) for name in names for path in Path("~/.pyenv/versions").expanduser().glob(f"*/bin/{name}")}
    return sorted(path for path in found if "shims" not in path)


@pytest.mark.parametrize("python", pythons())
def test_it_runs_on_every_python(python: str) -> None:
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPOSITORY)!r})
        import os, signal, subprocess
        from gpuctl.node import clean, emptiness, gpus, holders, ownership, processes, proof, reaper
        from gpuctl.wire.runspec import Stop
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        me = processes.find(os.getpid())
        claim = proof.Proof("r", "/nowhere", [me.id])
        claim.remember(processes.find(child.pid).id)  # its status is asked for below
        assert [one.id.pid for one in claim.ours(processes.scan())] == [child.pid]
        reaped = reaper.end(None, claim, Stop("TERM", 5), pause=lambda s: None, on_kill=lambda *told: None)
        assert not reaped.left and child.wait() == -signal.SIGTERM
        assert holders.by_proc(holders.device_files([{__file__!r}])) == {{}}
    """
    subprocess.run([python, "-I", "-S", "-W", "error", "-c", code], check=True, timeout=60)
