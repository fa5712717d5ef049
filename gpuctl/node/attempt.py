"""One attempt as the supervisor sees it: started under a keeper, followed by its processes' ids, ended once."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from gpuctl.node import program
from gpuctl.node.folders import AttemptFolder, RunFolder
from gpuctl.node.processes import ProcessId, alive, catches, children, environ, find
from gpuctl.node.reaper import signal_number
from gpuctl.wire.incidents import Exit

START_DEADLINE_S = 30.0
EXIT_DEADLINE_S = 10.0
SHELLS = frozenset({"bash", "sh", "dash", "ash", "ksh", "zsh"})


class NotStarted(Exception):
    """The keeper could not be started, or said nothing in time."""


class Attempt:
    """`keeper` and `job` are None where they were gone before anyone could note their start."""

    def __init__(self, folder: AttemptFolder, keeper: Optional[ProcessId], job: Optional[ProcessId]) -> None:
        self.folder = folder
        self.number = folder.number
        self.keeper = keeper
        self.job = job
        self._status: Optional[int] = None  # where we reaped it ourselves

    @classmethod
    def of_event(cls, run: RunFolder, event: Mapping[str, Any]) -> Attempt:
        """The attempt that an `attempt_started` event tells of."""
        keeper = ProcessId(event["keeper"], event["keeper_start"]) if event.get("keeper") else None
        job = ProcessId(event["pid"], event["pid_start"]) if event.get("pid") else None
        return cls(run.attempt(event["attempt"]), keeper, job)

    @property
    def keeper_lives(self) -> bool:
        return self.keeper is not None and alive(self.keeper)

    @property
    def job_lives(self) -> bool:
        return self.job is not None and alive(self.job)

    def top(self, stop: str) -> Optional[ProcessId]:
        """Who gets the stop signal first: the job's own first process. A shell that only waits for its child is not
        the job: it would die at once, and its child be ended with its own children; one with a trap for it is."""
        if self.job is None or not alive(self.job):
            return None
        number = signal_number(stop)
        top = self.job
        while True:
            process = find(top.pid)
            if process is None or process.comm not in SHELLS or catches(top.pid, number):
                return top
            found = [child for child in map(find, children(top.pid)) if child is not None]
            below = [child.id for child in found if child.alive and child.ppid == top.pid]
            if not below:
                return top
            top = min(below, key=lambda child: child.start)

    def secrets(self, names: Sequence[str]) -> Optional[Dict[str, str]]:
        """Their values, from the living job's environment, which no program can wipe there (SPT_NOENV)."""
        known = environ(self.job.pid) if self.job is not None and self.job_lives else None
        return {name: known[name] for name in names if name in known} if known else None

    def exit(self) -> Optional[Exit]:
        """How it ended; None while it runs. A status that nobody could read is an Exit without one, never a guess."""
        written = self._written()
        if written is not None:
            return written
        if self.keeper_lives:
            return None  # it will write
        reaped = self._reap()
        if reaped is not None:
            return reaped
        if self.job_lives:
            return None
        return self._written() or Exit()

    def exit_soon(self, pause: Callable[[float], None], deadline_s: float) -> Optional[Exit]:
        """Its exit; waits for the keeper to write it where the job is gone already. None: it runs, or none came."""
        deadline = time.monotonic() + deadline_s
        while True:
            found = self.exit()
            if found is not None or self.job_lives or time.monotonic() > deadline:
                return found
            pause(0.005)

    def wait_exit(self, pause: Callable[[float], None]) -> Exit:
        """The exit of a job that was ended; one without a status when none comes."""
        return self.exit_soon(pause, EXIT_DEADLINE_S) or Exit()

    def _written(self) -> Optional[Exit]:
        data = self.folder.exit()
        if data is None:
            return None
        never_begun = not data.get("started", True)
        return Exit(data["exit_code"], data["signal"], data["duration_s"], never_begun=never_begun)

    def _reap(self) -> Optional[Exit]:
        """Where the keeper died, its orphans are ours (the supervisor is a subreaper too), and so is the status."""
        if self.job is None:
            return None
        if self._status is None:
            try:
                pid, status = os.waitpid(self.job.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            self._status = status
        if os.WIFEXITED(self._status):
            return Exit(exit_code=os.WEXITSTATUS(self._status))
        return Exit(signal=os.WTERMSIG(self._status))


class Starting:
    """A keeper with a job that waits for the word. `go` lets it run; dropping this without it ends both."""

    def __init__(self, run: RunFolder, folder: AttemptFolder, order: Dict[str, Any]) -> None:
        report_read, report_write = os.pipe()
        go_read, self._go_write = os.pipe()
        order = {**order, "report_fd": report_write, "go_fd": go_read}
        try:
            with open(os.path.join(run.path, "supervisor.err"), "ab") as errors:
                keeper = subprocess.Popen(
                    program.argv("keep"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                    pass_fds=(report_write, go_read), env=program.own_environment(), cwd="/", start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(report_write)
            os.close(go_read)
        found = find(keeper.pid)
        assert keeper.stdin is not None
        try:
            keeper.stdin.write(json.dumps(order).encode() + b"\n")
            keeper.stdin.close()
            report = _line(report_read, START_DEADLINE_S)
        except OSError as error:
            raise NotStarted(f"the keeper took no order: {error}") from error
        finally:
            os.close(report_read)
        if report is None or found is None:
            os.close(self._go_write)
            raise NotStarted(f"the keeper did not start; {run.path}/supervisor.err may say why")
        self.attempt = Attempt(folder, found.id, ProcessId(report["pid"], report["start"]))

    def go(self) -> None:
        os.write(self._go_write, b"g")
        os.close(self._go_write)


def _line(descriptor: int, deadline_s: float) -> Optional[Dict[str, Any]]:
    """One JSON line from a pipe; None at its end or when the deadline has passed."""
    data = b""
    deadline = time.monotonic() + deadline_s
    while not data.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        piece = os.read(descriptor, 4096)
        if not piece:
            return None
        data += piece
    answer: Dict[str, Any] = json.loads(data)
    return answer


def set_aside(run: RunFolder, number: int) -> None:
    """Moves a folder out of the way that a start left which never came to be journaled."""
    folder = run.attempt(number)
    if not os.path.isdir(folder.path):
        return
    for suffix in range(1, 1000):
        aside = f"{folder.path}.not-started-{suffix}"
        if not os.path.exists(aside):
            os.rename(folder.path, aside)
            return
