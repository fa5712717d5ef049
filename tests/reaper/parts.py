"""Real processes for the tests of this area, and their end whatever the test did."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuctl.node.processes import Process, ProcessId, alive, children, find, scan
from gpuctl.node.proof import Proof, lineage
from gpuctl.node.proof import keeper as keeper_like
from tests.parts.gpus import REPOSITORY
from tests.waiting import wait_until

RUN = "train-a1b2c3"


def id_of(pid: int) -> ProcessId:
    found = find(pid)
    assert found is not None
    return found.id


def descendants(root: ProcessId) -> list[Process]:
    """All below a process, living or not, without any proof: what the tests themselves go by."""
    below = lineage(scan())
    found: list[Process] = []
    waiting = list(below.get(root, []))
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += below.get(process.id, [])
    return found


@dataclass
class Kept:
    """A job under a keeper."""

    keeper: ProcessId
    job: ProcessId
    run: str
    state_dir: str
    killed: list[tuple[int, str]] = field(default_factory=list)

    def proof(self, *, keeper: bool = True) -> Proof:
        """With the keeper as its root, and us apart as a supervisor would be; or as if both were gone."""
        return Proof(self.run, self.state_dir, *([[self.keeper], [id_of(os.getpid())]] if keeper else [[]]))

    def living(self) -> list[Process]:
        return [process for process in descendants(self.keeper) if process.alive]

    def all_gone(self) -> bool:
        """Said by the kernel: a keeper ends when it has no children any more. No scan could be as sure: what forks and
        ends, forks and ends, slips through between the list of pids and the look at each."""
        return bool(wait_until(lambda: not alive(self.keeper), within_s=3, what="the keeper's end"))

    def named(self, comm: str, count: int = 1) -> list[Process]:
        """Its living descendants of this name, once there are so many."""

        def probe() -> list[Process]:
            found = [process for process in self.living() if process.comm == comm]
            return found if len(found) >= count else []

        return wait_until(probe, what=f"{count} × {comm} below {self.keeper}")

    def on_kill(self, process: Process, name: str, why: str) -> None:
        assert why
        self.killed.append((process.id.pid, name))


def marker(run: str, state_dir: Path | str) -> dict[str, str]:
    return {"GPUCTL_RUN": run, "GPUCTL_DIR": f"{state_dir}/runs/{run}/attempts/1"}


@contextlib.contextmanager
def kept(
    argv: list[str],
    state_dir: Path,
    *,
    run: str = RUN,
    env: dict[str, str] | None = None,
    keeper_env: dict[str, str] | None = None,
) -> Iterator[Kept]:
    """A job with its marker under a keeper of its own. At the end nothing of it is left, proven or not."""
    plain = {name: value for name, value in os.environ.items() if name not in ("TMUX", "STY")}
    order = {"argv": argv, "env": {**plain, **marker(run, state_dir), **(env or {})}}
    state_dir.mkdir(parents=True, exist_ok=True)
    archive = state_dir / f"{'0' * 64}.pyz"  # a keeper is known by its argv: this one looks the same
    archive.write_text(
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from tests.reaper import keeping; keeping.main()"
    )
    keeper = subprocess.Popen(
        [sys.executable, "-I", str(archive), "keep", json.dumps(order)],
        cwd=REPOSITORY, env={**plain, **(keeper_env or {})}, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert keeper.stdout is not None
    root = id_of(keeper.pid)
    try:
        job = ProcessId(*map(int, keeper.stdout.readline().split()))
        wait_until(lambda: _has_begun(job.pid), what="the job's exec")
        yield Kept(root, job, run, str(state_dir))
    finally:
        end_tree(root)
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


def _has_begun(pid: int) -> bool:
    found = find(pid)
    return found is None or not found.alive or not keeper_like(found)


def end_tree(root: ProcessId) -> None:
    """Without the code under test: by pid, the root's own children again and again, until it has no living one."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        seen = {*children(root.pid), *(process.id.pid for process in descendants(root) if process.alive)}
        living = {pid for pid in seen if (found := find(pid)) is None or found.alive}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if not living:
            return


@contextlib.contextmanager
def started(argv: list[str], *, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's, in a session of its own."""
    process = subprocess.Popen(argv, env=env, start_new_session=True, cwd=REPOSITORY)
    root = id_of(process.pid)
    try:
        yield process
    finally:
        end_tree(root)
        process.kill()
        process.wait()


def pause_never(_: float) -> None:
    raise AssertionError("this was not to wait")
