"""`view RUN_DIR`: what the pane of a run's tmux session shows: the log, over all attempts, until the run has ended.

It only looks: Ctrl-C and q in it send away whoever is attached, and the run goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import termios
import tty
from typing import Any, Dict, Optional

from gpuctl.node import terminal
from gpuctl.node.folders import RunFolder
from gpuctl.node.logs import Log
from gpuctl.node.machine import identity
from gpuctl.node.pursuit import Pursuit
from gpuctl.node.refusal import Refusal
from gpuctl.node.waiter import Waiter, Woke

SHOWN_LINES = 500
LEAVE_KEYS = (b"q", b"Q", b"\x03")


class Pane:
    """The terminal, as something to write a log to."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._run = os.path.basename(run_dir)
        self._attempt: Optional[int] = None
        self._keys: Optional[int] = 0

    def send_chunk(self, header: Dict[str, Any], data: bytes) -> None:
        if header["attempt"] != self._attempt:
            self._attempt = header["attempt"]
            self.rule(f"{self._run}, attempt {self._attempt}")
        _write(data)

    def wait(self, waiter: Waiter, timeout_s: float) -> Woke:
        if self._keys is not None:
            waiter.add_fd(self._keys)
        woke = waiter.wait(timeout_s)
        if self._keys in woke:
            self._listen(waiter)
        return woke

    def rule(self, text: str) -> None:
        """A line across the pane: not the job's."""
        width = shutil.get_terminal_size().columns - 1
        _write(f"\r\x1b[2m{f'── {text} '.ljust(width, '─')}\x1b[0m\r\n".encode())

    def leave(self) -> None:
        self.send_away(f"{self._run} goes on. To end it: gpuctl kill {self._run}")

    def send_away(self, farewell: str) -> None:
        try:
            terminal.send_away(self._run_dir, farewell, server=terminal.own_server())
        except Refusal as refusal:
            self.rule(refusal.what)

    def _listen(self, waiter: Waiter) -> None:
        keys = os.read(0, 1024)
        if any(key in keys for key in LEAVE_KEYS):
            self.leave()
        elif not keys:  # no terminal any more; the log is shown all the same
            waiter.remove_fd(0)
            self._keys = None


def main(run_dir: str) -> int:
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(ignored, signal.SIG_IGN)
    if os.isatty(0):
        tty.setraw(0, termios.TCSANOW)  # Ctrl-C is a key like any other
        attributes = termios.tcgetattr(0)
        attributes[1] |= termios.OPOST  # but a newline still returns to the first column
        termios.tcsetattr(0, termios.TCSANOW, attributes)
    folder, pane = RunFolder(run_dir), Pane(run_dir)
    log = Log(folder, None)
    text = log.first(None, None, SHOWN_LINES, follow=True)
    pane.rule(f"{folder.run}: q or Ctrl-C leaves this view, the run goes on; gpuctl kill {folder.run} ends it")
    log.follow(pane, text, Pursuit([log.tail], identity(), revive=lambda run: None), over_attempts=True)
    why = f" ({log.tail.life.why})" if log.tail.life.why else ""
    pane.rule(f"{folder.run}: {log.tail.life.state}{why}")
    pane.send_away(f"{folder.run}: {log.tail.life.state}")
    return 0


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
