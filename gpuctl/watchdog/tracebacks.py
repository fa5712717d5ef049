"""Python's tracebacks, told apart though ranks print theirs into one another: who raised what, in which frames, in
which thread. The source lines that a traceback quotes are never evidence ("raise RuntimeError('NCCL error …')")."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from gpuctl.watchdog.lines import Line
from gpuctl.watchdog.progress import read_counter

_HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?|^(/?[\w./-]+\.py):(\d+) in (\S+)')
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\s?\[[^\]]*\])?(?::(?:\s|$)|$)")
_THREAD = re.compile(
    r"Exception in thread (.+?)(?: \([^()]*\))?:?\s*$|\bTask <([^>]+)> failed|\bException in callback (\S+)"
    r"|<(?:Task|Future) (?:finished|cancelled) (?:name='([^']+)' )?.{0,200}exception="
)
_UNRAISABLE = re.compile(r"^Exception ignored |^--- Logging error ---|^Error in (?:atexit|sys\.)")
"""What Python prints of an exception that nobody can catch and nothing ends of."""
_QUOTED_CODE = re.compile(r"^(?:\s+\S|❱|[╭╰│┃]|\s*\^+\s*$|\s*~*\^+~*\s*$)")
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|\.pyx$|importlib|runpy\.py$")
_DEEP = 400  # lines: a traceback that has not ended by then was cut


@dataclass
class Raised:
    """An exception that was printed with its traceback. `calls`: each frame's function and source, outermost first."""

    text: str
    calls: List[str]
    frame: Optional[str]  # the innermost one of the job's own code, "file:line"
    thread: Optional[str]
    ignored: bool = False  # by Python itself: in a destructor, a log handler, at exit
    logged: bool = False  # by who caught it, as no error


@dataclass
class _Open:
    thread: Optional[str]
    indent: int = 0
    ignored: bool = False
    logged: bool = False
    calls: List[str] = field(default_factory=list)
    frame: Optional[str] = None
    lines: int = 0


class Tracebacks:
    """Feed it every line. `quoting` says whether the last one was a traceback's inside."""

    def __init__(self) -> None:
        self.quoting = False
        self._open: Dict[Optional[int], _Open] = {}
        self._thread: Dict[Optional[int], Tuple[str, int]] = {}
        self._ignored: Dict[Optional[int], int] = {}
        self._low: Dict[Optional[int], int] = {}  # by rank: its last line that was a message below ERROR

    @property
    def open(self) -> bool:
        return bool(self._open)

    def calls(self, rank: Optional[int]) -> List[str]:
        """The frames of this rank's unfinished traceback."""
        return self._open[rank].calls if rank in self._open else []

    def take(self, line: Line) -> Optional[Raised]:
        self.quoting = False
        text, rank = line.text, line.rank
        if _HEADER in text:
            thread, at = self._thread.pop(rank, (None, 0))
            self._open[rank] = _Open(
                thread if at >= line.number - 3 else None,
                len(text) - len(text.lstrip()) if text.lstrip().startswith(_HEADER) else 0,
                line.number - self._ignored.pop(rank, -9) <= 2,
                self._low.get(rank, -9) == line.number - 1,
            )
            self.quoting = True
            return None
        if line.level in ("debug", "info", "warning") and read_counter(text) is None:
            self._low[rank] = line.number
        if _UNRAISABLE.match(text):
            self._ignored[rank] = line.number
        named = _THREAD.search(text) if "xception" in text or "Task <" in text else None
        if named:
            self._thread[rank] = (next((name for name in named.groups() if name), "task").strip(), line.number)
        if rank not in self._open:
            return None
        return self._within(self._open[rank], line)

    def _within(self, traceback: _Open, line: Line) -> Optional[Raised]:
        traceback.lines += 1
        text = line.text
        if traceback.indent and text[: traceback.indent].isspace():
            text = text[traceback.indent :]
        frame = _FRAME.match(text)
        if frame:
            file, number, function = (
                frame.group(1) or frame.group(4),
                frame.group(2) or frame.group(5),
                frame.group(3) or frame.group(6),
            )
            traceback.calls.append(f"{file} {function or ''}")
            if not _LIBRARY.search(file):
                traceback.frame = f"{file}:{number}"
            self.quoting = True
        elif _QUOTED_CODE.match(text):
            if traceback.calls:
                traceback.calls[-1] += "\n" + text.strip()
            self.quoting = True
        elif _EXCEPTION.match(text) and traceback.calls:
            del self._open[line.rank]
            return Raised(text, traceback.calls, traceback.frame, traceback.thread, traceback.ignored, traceback.logged)
        if traceback.lines > _DEEP:
            del self._open[line.rank]
        return None
