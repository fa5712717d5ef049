"""Ends what a test left running: by pid, whatever carries the test's own folder in its argv or environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from signal import SIGKILL

from gpuctl.node.processes import Process, scan, signal
from tests.waiting import wait_until


def of_folder(folder: Path) -> list[Process]:
    """The living processes that belong to the folder."""
    return [process for process in scan() if process.alive and _carries(process.id.pid, str(folder).encode())]


def end_all(folder: Path) -> None:
    """Raises where something of it can't be ended."""

    def none_lives() -> bool:
        left = of_folder(folder)
        for process in left:  # one that forks while being ended is found again
            signal(process.id, SIGKILL)
        return not left

    wait_until(none_lives, what=f"the end of all that belongs to {folder}")


def _carries(pid: int, text: bytes) -> bool:
    if pid == os.getpid():
        return False
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            if text in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
    return False
