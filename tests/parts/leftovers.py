"""Ends what a test left running: by pid, whatever carries the test's own folder in its argv or environment."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from gpuctl.node.processes import Process, find, scan


def of_folder(folder: Path) -> list[Process]:
    """The living processes that belong to the folder."""
    return [process for process in scan() if process.alive and _carries(process.id.pid, str(folder).encode())]


def end_all(folder: Path) -> None:
    for _ in range(50):  # one that forks while being ended is found again
        left = of_folder(folder)
        if not left:
            return
        for process in left:
            if find(process.id.pid) == process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.id.pid, signal.SIGKILL)


def _carries(pid: int, text: bytes) -> bool:
    if pid == os.getpid():
        return False
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            if text in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
    return False
