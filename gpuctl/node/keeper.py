"""The keeper: one per attempt, the job's parent, a child subreaper, so that orphans of orphans stay its descendants.

It starts the job, records its raw wait status, and starts a new supervisor where the old one died. It stays until it
has no children and the supervisor has let it go (SIGTERM, sent once it is journaled what follows), so that a supervisor
that dies between the job's exit and the next attempt is followed by one, too. It does not inherit the run's lock and
carries no GPUCTL_* variable. The forked job waits on a pipe until the supervisor has journaled it; end of file there
means: exit without exec. So a crash at any point starts no job twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, Optional

from gpuctl.node import clock, program
from gpuctl.node.processes import children, find

PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = b"n"
ASIDE = "exit.json.aside"
RETRY_S = 1.0
RESTART_BACKOFF_S = (0.0, 0.0, 0.2, 1.0, 5.0, 30.0)  # by how many supervisors in a row have died soon
LIVED_S = 60.0  # a supervisor that lived so long did not die of what it found
OOM_SCORE_ADJ = "500"  # the kernel's OOM killer should take the job before its watchdog


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process. Raises OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def main() -> int:
    """Runs one attempt. Its order is a JSON line on stdin; `report_fd` and `go_fd` are inherited pipes."""
    order: Dict[str, Any] = json.loads(sys.stdin.readline())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    become_subreaper()
    let_go, letting_go = os.pipe()
    os.set_blocking(letting_go, False)
    signal.signal(signal.SIGTERM, lambda *_: _say(letting_go))
    exit_file = ExitFile(order["attempt_dir"], let_go)
    heard, told = os.pipe()
    job = os.fork()
    if job == 0:
        _become_job(order, told)
    os.close(order["go_fd"])
    os.close(told)
    found = find(job)
    report = {"pid": job, "start": found.id.start if found else 0}
    os.write(order["report_fd"], (json.dumps(report) + "\n").encode())
    os.close(order["report_fd"])
    if os.read(heard, 1) == NOT_STARTED:
        os.waitpid(job, 0)
        exit_file.never_begun(job)
        start_supervisor(order["run_dir"], order["secrets"])  # the one before us died: that is what the job was told
        return 0
    threading.Thread(target=_guard, args=(order, letting_go), daemon=True).start()
    _keep(job, exit_file, let_go)
    return 0


def _become_job(order: Dict[str, Any], told: int) -> None:
    """In the forked child: waits for the word, then becomes the job's shell. Never returns."""
    try:
        os.setsid()
        for restored in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(restored, signal.SIG_DFL)
        os.close(order["report_fd"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if os.read(order["go_fd"], 1) != b"g":
            os.write(told, NOT_STARTED)
            os._exit(0)
        with open("/proc/self/oom_score_adj", "w") as adjust:
            adjust.write(OOM_SCORE_ADJ)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 256)
        os.chdir("/")
        os.execve(order["argv"][0], order["argv"], {**order["env"], **order["secrets"]})  # noqa: S606  (argv, no shell)
    except BaseException as error:  # noqa: BLE001  (a forked child must not run the parent's code any further)
        os.write(2, f"gpuctl: the job could not be started: {error}\n".encode())
    os._exit(127)


def _keep(job: int, exit_file: ExitFile, let_go: int) -> None:
    """Collects children until there are none and the supervisor has let go; the job's own status is written at once."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            os.read(let_go, 1)
            if not children(os.getpid()):
                return
            continue
        if pid == job:
            exit_file.exited(pid, status)


def _say(pipe: int) -> None:
    """A byte into a pipe; a full one has been heard already."""
    with contextlib.suppress(BlockingIOError):
        os.write(pipe, b".")


class ExitFile:
    """The attempt's exit.json, written aside and renamed: it is there whole or not at all.

    By the folder's descriptor, since a folder may be renamed meanwhile; anew where the job has removed its own. Room
    for it is reserved, so that a job that fills the disk does not hide how it ended.
    """

    def __init__(self, path: str, let_go: int) -> None:
        self._path = path
        self._let_go = let_go
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._started = clock.boottime()
        with contextlib.suppress(OSError):
            aside = os.open(ASIDE, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=self._folder)
            try:
                os.posix_fallocate(aside, 0, 1024)
            finally:
                os.close(aside)

    def exited(self, pid: int, status: int) -> None:
        """`status` is the raw wait status."""
        normal = os.WIFEXITED(status)
        ended = clock.boottime()
        self._write({
            "pid": pid,
            "status": status,
            "exit_code": os.WEXITSTATUS(status) if normal else None,
            "signal": None if normal else os.WTERMSIG(status),
            "ended": clock.now(),
            "ended_mono_s": round(ended, 3),
            "duration_s": round(ended - self._started, 3),
        })  # fmt: skip

    def never_begun(self, pid: int) -> None:
        self._write({"pid": pid, "started": False, "exit_code": None, "signal": None, "duration_s": None})

    def _write(self, told: Dict[str, Any]) -> None:
        """Tries until it is written; or, on a full disk, until the run is over without it."""
        while True:
            try:
                self._write_once(json.dumps(told).encode())
                return
            except OSError:
                if select.select([self._let_go], [], [], RETRY_S)[0]:
                    return

    def _write_once(self, data: bytes) -> None:
        if os.fstat(self._folder).st_nlink == 0:
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        aside = os.open(ASIDE, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=self._folder)
        try:
            os.write(aside, data)
            os.ftruncate(aside, len(data))
            os.fsync(aside)
        finally:
            os.close(aside)
        os.rename(ASIDE, "exit.json", src_dir_fd=self._folder, dst_dir_fd=self._folder)


def _guard(order: Dict[str, Any], letting_go: int) -> None:
    """Waits for the run's lock to come free (a supervisor died, whoever started it) and starts the next supervisor."""
    failures = 0
    since = clock.boottime()
    while True:
        try:
            lock = os.open(order["lock"], os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # somebody removed the run's folder: there is nothing left to watch over
            _say(letting_go)
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(lock)
        failures = 0 if clock.boottime() - since > LIVED_S else failures + 1
        time.sleep(RESTART_BACKOFF_S[min(failures, len(RESTART_BACKOFF_S) - 1)])
        since = clock.boottime()
        answer = start_supervisor(order["run_dir"], order["secrets"])
        if answer == "ended":
            _say(letting_go)
            return


def start_supervisor(run_dir: str, secrets: Optional[Dict[str, str]], *, deadline_s: float = 20.0) -> str:
    """Starts a supervisor in a session of its own and waits for its first word.

    `watching`: it has the lock and has journaled what it found; `ended`: the run is over; `taken`: another supervisor
    has the lock; `failed`: it died or was silent for `deadline_s`.
    """
    errors = _errors_file(run_dir)
    try:
        child = subprocess.Popen(
            program.argv("supervise", run_dir), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            env=program.own_environment(), cwd="/", start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(errors)
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps({"secrets": secrets}).encode() + b"\n")
        child.stdin.close()
    except OSError:
        return "failed"
    word: list[bytes] = []
    reader = threading.Thread(target=lambda: word.append(child.stdout.readline()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    reader.join(deadline_s)
    answer = word[0].decode().strip() if word else ""
    return answer if answer in ("watching", "ended", "taken") else "failed"


def _errors_file(run_dir: str) -> int:
    """Where the program's own faults go. Nowhere, on a disk that has no room for a new file."""
    try:
        return os.open(os.path.join(run_dir, "supervisor.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
