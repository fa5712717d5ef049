"""Waiting with an end. The supervisor has one thread: what it waits for must not keep it from its run.

A process that waits in the kernel (for a disk that is gone, for a driver) does not even die of SIGKILL, and
`subprocess.run` waits for that after its timeout; a lock may be held by one that was stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, TypeVar

GONE_S = 2.0  # that a killed process has to be gone
POLL_S = 0.02

T = TypeVar("T")


def run(
    argv: Sequence[str], *, within_s: float, stdout: int = subprocess.DEVNULL, stderr: int = subprocess.DEVNULL,
    env: Optional[Mapping[str, str]] = None, cwd: Optional[str] = None,
) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    """As `subprocess.run` with a timeout, which raises TimeoutExpired; but a process that does not die is left."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env, cwd=cwd)
    try:
        out, err = child.communicate(timeout=within_s)
    except BaseException:
        kill(child)
        raise
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kills it, and waits a little for its end."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GONE_S)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def lock(descriptor: int, within_s: float) -> None:
    """Takes an exclusive flock. Raises TimeoutError, an OSError, where somebody holds it all the time."""
    end_at = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end_at:
                raise TimeoutError(f"it was locked for {within_s:.0f} s") from None
            time.sleep(POLL_S)


def answered(ask: Callable[[], T], within_s: float) -> T:
    """What `ask` answers, or its error. Raises TimeoutError where it goes on waiting, which it then does in a thread of
    its own: a network file system whose server is gone blocks whoever asks it."""
    answers: List[Any] = []
    errors: List[BaseException] = []

    def work() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # noqa: BLE001  (it is raised again below, in the thread that asked)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(within_s)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {within_s:.0f} s")
    found: T = answers[0]
    return found
