"""What jobs print, and how long they take to: progress bars, log lines, prefixed tracebacks, and scaled time."""

from __future__ import annotations

import os
import sys
import time
import traceback

BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 10


class Pace:
    """Time in which `speed` seconds of the real job pass in one. Its clock shows the job's seconds since its start."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._start = time.monotonic()

    def take(self, seconds: float) -> None:
        """What takes the real job this long."""
        time.sleep(seconds / self.speed)

    def elapsed_s(self) -> float:
        return (time.monotonic() - self._start) * self.speed


class Bar:
    """A progress bar as tqdm draws it where stderr is a file: each state after a carriage return, a newline at the end.

    Drawn over the job's own seconds, so that its rates are the real job's.
    """

    def __init__(self, description: str, total: int, pace: Pace, *, unit: str = "it") -> None:
        self.description = description
        self.total = total
        self.done = 0
        self._pace = pace
        self._unit = unit
        self._began_s = pace.elapsed_s()
        self._draw()

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._draw()
        if self.done >= self.total:
            write("\n")

    def _draw(self) -> None:
        share = self.done / self.total
        percent = f"{share:4.0%}".rjust(4)
        write(f"\r{self.description}: {percent}|{drawn(share)}| {self.done}/{self.total} {self.timing()}")

    def timing(self) -> str:
        """`[elapsed<remaining, rate]`"""
        elapsed_s = self._pace.elapsed_s() - self._began_s
        if not self.done:
            return f"[{clock(elapsed_s)}<?, ?{self._unit}/s]"
        each_s = max(elapsed_s / self.done, 1e-6)
        rate = f"{each_s:5.2f}s/{self._unit}" if each_s > 1 else f"{1 / each_s:5.2f}{self._unit}/s"
        return f"[{clock(elapsed_s)}<{clock(each_s * (self.total - self.done))}, {rate}]"


class ShardBar(Bar):
    """vLLM's: a line for each shard, no blocks."""

    def _draw(self) -> None:
        percent = f"{self.done / self.total:4.0%}".rjust(4)
        write(f"\r{self.description}: {percent} Completed | {self.done}/{self.total} {self.timing()}\n")

    def advance(self, count: int = 1) -> None:
        self.done += count
        self._draw()


def drawn(share: float) -> str:
    """A bar of ten characters, filled to an eighth of one."""
    eighths = int(share * BAR_WIDTH * 8)
    full, part = divmod(eighths, 8)
    return (BLOCKS[8] * full + (BLOCKS[part] if full < BAR_WIDTH else "")).ljust(BAR_WIDTH)[:BAR_WIDTH]


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def write(text: str) -> None:
    """One write for each text, so that processes that share a log do not cut each other's lines."""
    sys.stdout.flush()
    os.write(1, text.encode())


def say(line: str, prefix: str = "") -> None:
    write(f"{prefix}{line}\n")


def stamp() -> str:
    """The time in the job's log lines."""
    return time.strftime("%m-%d %H:%M:%S")


def say_traceback(prefix: str = "") -> None:
    """The exception being handled, as Python prints it, behind a prefix on every line; in one write."""
    lines = traceback.format_exc().rstrip("\n").split("\n")
    write("".join(f"{prefix}{line}\n" for line in lines))
