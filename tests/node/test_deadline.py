"""Nothing that the supervisor waits for keeps it: no child that SIGKILL does not end, no lock, no dead file system."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node import callback, deadline, holders, shell, stacks
from gpuctl.node.folders import StateFolder
from gpuctl.node.history import Record
from gpuctl.node.ledger_file import append
from gpuctl.node.processes import environ, find
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import Callback, RunSpec
from tests.waiting import wait_until

SOURCE = Path(deadline.__file__).parent


@pytest.fixture
def undying(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Children in the kernel's hands: a SIGKILL does not end them, for as long as the test runs."""
    spared: list[int] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda child: spared.append(child.pid))
    monkeypatch.setattr(deadline, "GONE_S", 0.1)
    yield spared
    for pid in spared:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def program(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that never ends, in front of all others of its name."""
    path = folder / name
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return path


def test_a_child_that_does_not_die_is_left(undying: list[int]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        deadline.run(["sleep", "60"], within_s=0.1)
    assert len(undying) == 1


def test_what_a_child_says(tmp_path: Path) -> None:
    done = deadline.run(["sh", "-c", "pwd; echo no >&2; exit 3"], stdout=subprocess.PIPE, cwd=str(tmp_path), within_s=9)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path}\n".encode(), None)


def test_a_callback(undying: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback, "DEADLINE_S", 0.1)
    record = Record(str(tmp_path / "journal.jsonl"))
    record.write("run_finished", state="failed", why="a test")
    spec = RunSpec("job-1", "job", "n", "true", callback=Callback(["failed"], "exec sleep 60"))
    callback.call_back(spec, NodeSpec("n"), record)
    assert record.called_back
    assert len(undying) == 1


def test_fuser(undying: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "fuser", monkeypatch)
    monkeypatch.setattr(holders, "FUSER_DEADLINE_S", 0.1)
    assert holders.by_fuser([]) is None
    assert len(undying) == 1


def test_git_and_the_login_shell(undying: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = program(tmp_path, "sh", monkeypatch)
    program(tmp_path, "git", monkeypatch)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(shell, "GIT_DEADLINE_S", 0.1)
    monkeypatch.setattr(shell, "SHELL_DEADLINE_S", 0.1)
    monkeypatch.setattr(shell.program, "login_environment", lambda: {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(shell, "login_shell", lambda: [str(stuck)])
    assert shell.code_of(str(tmp_path)) is None
    assert shell.finds("true", str(tmp_path))
    assert len(undying) == 2


def test_py_spy(undying: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "py-spy", monkeypatch)
    monkeypatch.setattr(stacks, "SPY_S", 0.1)
    with subprocess.Popen(["sleep", "60"]) as child:
        wait_until(lambda: environ(child.pid))  # it is there a moment after the process
        process = find(child.pid)
        assert process is not None
        kept = stacks.keep(str(tmp_path), [process], abort=False, pause=time.sleep, on_kill=lambda *_: None)
        os.kill(child.pid, signal.SIGKILL)
    assert (kept.of, kept.dumped, len(undying)) == (1, 0, 1)


def test_the_ledgers_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuctl.node.ledger_file.LOCKED_S", 0.1)
    state = StateFolder(NodeSpec("n", state_dir=str(tmp_path)))
    entry = LedgerEntry("job-1", 1, "job", "t", "H200", 1)
    append(state, entry)
    with open(state.ledger, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked"):
            append(state, entry)
    append(state, entry)


def test_a_question_that_is_never_answered() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        deadline.answered(never.wait, 0.1)
    never.set()
    assert deadline.answered(lambda: 3, 9.0) == 3
    with pytest.raises(ZeroDivisionError):
        deadline.answered(lambda: 1 // 0, 9.0)


def test_there_is_no_other_way_to_wait() -> None:
    """All children of the node's program but its own long-lived ones are waited for in one place."""
    waits = re.compile(r"subprocess\.(?:run|call|check_\w+)\(|\.wait\(\)|\.communicate\(\)|LOCK_EX\)")
    found = {path.name for path in SOURCE.glob("*.py") if waits.search(path.read_text())}
    assert found <= {"keeper.py", "leases.py", "folders.py", "lock_dir.py"}, found
