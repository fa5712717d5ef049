"""From bytes to the lines that can matter.

A log arrives in pieces that end anywhere, holds progress bars that rewrite themselves by `\\r`, colours, boxes, rank
prefixes and lines of megabytes. `LineReader` turns it into `Line`s: what stands between two separators, without
decoration, at most 4 KiB each (longer ones in overlapping pieces). Everything that reads text reads these.

Speed: a job that writes fast may write gigabytes, and nearly all of it is harmless. A block with many lines is first
searched, as bytes, for a handful of stems that every failure's wording contains; only the surroundings of what then
matters, and the end of the block (where progress stands), become lines. Small blocks, so every live log, are read
whole.
"""

from __future__ import annotations

import re
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

LONGEST = 4096  # what a regular expression sees of a line
_OVERLAP = 512  # of the pieces of a longer one
_BLOCK = 1024 * 1024
_WHOLE, _MANY = 128 * 1024, 400  # fewer bytes in fewer lines at once are read whole
_BEFORE, _AFTER = 12 * 1024, 8 * 1024  # bytes around a line that matters: a deep traceback, what follows it
_TAIL = 512  # bytes at a block's end, and the line that they begin in: where progress stands
_FRUITLESS, _SAMPLED = (
    100,
    10,
)  # a stem found so often in vain is this log's everyday word: then only a few are looked at
_RARE = b"xkyfvb"  # letters: a block without one of a stem's has not the stem, and one byte is found ten times as fast

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_BOX = "│┃|"
_RANK = re.compile(
    r"\[?\b(?:rank|RANK|Rank)[ :=]?(\d+)\]?|^\[\d+,(\d+)\]<std|\bTP(\d+)\b|\bTP_rank=(\d+)|^\[(\d+)\]:"
    r"|\[default(\d+)\]:"
)
_LEVEL = re.compile(
    r"\b(?:(DEBUG|TRACE)|(INFO)|(WARN(?:ING)?|\w*Warning)|(ERROR|CRITICAL|FATAL|SEVERE))\b"
    r"|^\W{0,2}([DIWEF])(?=\d{4} |\d{4}-|,? tensorflow/|/tensorflow| \d\d:\d\d)|[\[:] ?([DIWEF])[ \d]"
    r"| ([DIWEF]) (?:tensorflow|external)/"
)
_LETTERS = {"D": "debug", "I": "info", "W": "warning", "E": "error", "F": "error"}
_PREFIX = re.compile(
    r"(?:"
    r"\[?(?:rank|RANK|Rank) ?\d+\]?:"  # [rank3]: — torchrun and PyTorch's own
    r"|\[\d+,\d+\]<std(?:out|err)>:"  # mpirun --tag-output
    r"|\[default\d+\]:|\[\d+\]:"  # torchrun --tee, accelerate
    r"|\([\w\[\]<>.:/-]+(?: [\w.:-]+)* pid=\d+[^)]{0,60}\) ?"  # vLLM's processes, Ray
    r"|\[[^\[\]]{0,20}(?:INFO|WARN|WARNING|ERROR|DEBUG|FATAL) ?\] ?(?:PyProcess )?(?:[\w-]+-std(?:out|err): ?)?"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)[ :|]+(?:\d\d-\d\d )?(?:\d\d:\d\d:\d\d,?\.?\d* )?"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]?-?(?: ?\d\d:\d\d:\d\d[.,]?\d*)?(?:Z|[+-]\d\d:?\d\d)?(?:"
    r" [A-Z]{2,3}\d+)*\]?:?(?: \| )?"
    r"|\[[\w/.-]+\.(?:py|cc|cpp|cu|go|rs):\d+[\w:]*\] ?"  # [core.py:708]
    r"|stderr(?: \| |: )|stdout(?: \| |: )|\[[\w./-]+/STD(?:ERR|OUT)\] ?"
    r"|\d\d:\d\d:\d\d[.,]\d+ (?=\[)|\[(?:Debug|Info|Warning|Error|Fatal)\] ?"
    r"|[A-Za-z][\w.]*[-_][\w.-]*\d* *\| "  # docker compose: service-1  | (a bare word is a column of a table)
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w.@-]+\[\d+\]: "  # syslog
    r")"
)
_QUOTED = re.compile(r"^(?:> |>>> |>$)")


class Line(NamedTuple):
    """One logical line. `text` has no colours, boxes or prefixes; the indentation behind a prefix stays."""

    number: int  # of the physical line, from 1: what `\r` separates shares one
    text: str
    rank: Optional[int] = None
    level: str = ""  # debug | info | warning | error, where the line says so
    quoted: bool = False  # somebody's report of another log ("> …")


class LineReader:
    """Give it bytes as they come; it returns what may matter of them. One per file.

    `stems`: lower-case literals, one of which every line that matters contains. `matters` decides on the line's text.
    """

    def __init__(self, stems: Sequence[bytes], matters: Callable[[str], bool]) -> None:
        self.whole = False  # read every line, however many: somebody waits for a line that no stem announces
        self._stems = {stem: [letter for letter in _RARE if letter in stem] for stem in stems}
        self._matters = matters
        self._parts: List[bytes] = []
        self._held = 0
        self._number = 1
        self._fruitless = dict.fromkeys(self._stems, 0)
        self._owed = 0  # bytes of the next block that follow a line that mattered in this one

    def feed(self, data: bytes) -> List[Line]:
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not cut and self._held + len(data) < _BLOCK:
            self._parts.append(data)
            self._held += len(data)
            return []
        text = b"".join(self._parts) + data
        cut = len(text) - len(data) + cut if cut else len(text) - _OVERLAP  # a line without an end is read in pieces
        self._parts, self._held = [text[cut:]], len(text) - cut
        return self._read(text[:cut])

    def close(self) -> List[Line]:
        """What is left: a last line without its separator."""
        rest = b"".join(self._parts)
        self._parts, self._held = [], 0
        return self._read(rest)

    def forget(self) -> None:
        """The file was truncated or replaced: what was held is no line's beginning any more."""
        self._parts, self._held, self._number, self._owed = [], 0, 1, 0

    def _read(self, text: bytes) -> List[Line]:
        if self.whole or (len(text) <= _WHOLE and text.count(b"\n") + text.count(b"\r") <= _MANY):
            lines = _split(text, self._number)
            self._number += text.count(b"\n")
            return lines
        lines = []
        start = 0
        while start < len(text):
            end = min(start + _BLOCK, len(text))
            if end < len(text):
                end = _separator_before(text, start, end)
            lines += self._read_block(text[start:end])
            start = end
        return lines

    def _read_block(self, block: bytes) -> List[Line]:
        windows = self._windows(block)
        lines: List[Line] = []
        counted = 0
        for begin, end in windows:
            self._number += block.count(b"\n", counted, begin)
            counted = begin
            lines += _split(block[begin:end], self._number)
        self._number += block.count(b"\n", counted)
        return lines

    def _windows(self, block: bytes) -> List[Tuple[int, int]]:
        """The stretches of the block that are worth reading, in order, merged, ending at separators."""
        size = len(block)
        wanted = [(max(0, size - _TAIL), size)]
        if self._owed:
            wanted.append((0, min(self._owed, size)))
        self._owed = 0
        lowered = block.lower()
        for stem, rare in self._stems.items():
            if all(letter in lowered for letter in rare):
                wanted += self._hits(block, lowered, stem)
        merged: List[Tuple[int, int]] = []
        for low, high in sorted(wanted):
            begin, end = _separator_before(block, 0, low) if low else 0, _line_around(block, high - 1)[1]
            if merged and begin <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        return merged

    def _hits(self, block: bytes, lowered: bytes, stem: bytes) -> List[Tuple[int, int]]:
        """The surroundings of the lines that hold the stem and matter."""
        size = len(block)
        found: List[Tuple[int, int]] = []
        looks = _SAMPLED
        position = lowered.find(stem)
        while position >= 0 and looks > 0:
            begin, end = _line_around(block, position)
            if self._matters(block[begin:end].decode("utf-8", "replace")):
                self._fruitless[stem] = 0
                found.append((max(0, begin - _BEFORE), min(size, end + _AFTER)))
                self._owed = max(self._owed, end + _AFTER - size)
                end += _AFTER // 2  # what is read anyway needs no search
            else:
                self._fruitless[stem] += 1
                looks -= self._fruitless[stem] >= _FRUITLESS
            position = lowered.find(stem, max(end, position + len(stem)))
        return found


def _separator_before(text: bytes, start: int, end: int) -> int:
    """Where the line that holds `end` begins; `end` itself where it is longer than what we look at."""
    low = max(start, end - LONGEST)
    return max(text.rfind(b"\n", low, end), text.rfind(b"\r", low, end)) + 1 or end


def _line_around(text: bytes, position: int) -> Tuple[int, int]:
    """Begin and end of the line that holds `position`, cut to `LONGEST` on either side."""
    low, high = max(0, position - LONGEST // 4), min(len(text), position + LONGEST)
    begin = max(text.rfind(b"\n", low, position), text.rfind(b"\r", low, position)) + 1 or low
    ends = [end for end in (text.find(b"\n", position, high), text.find(b"\r", position, high)) if end >= 0]
    return begin, min(ends, default=high)


def _split(text: bytes, number: int) -> List[Line]:
    lines: List[Line] = []
    for physical in text.split(b"\n"):
        for logical in physical.split(b"\r") if b"\r" in physical else (physical,):
            if logical and not logical.isspace():
                for start in range(0, max(1, len(logical) - _OVERLAP), LONGEST - _OVERLAP):
                    lines.append(read_line(logical[start : start + LONGEST], number))
        number += 1
    return lines


def read_line(raw: bytes, number: int) -> Line:
    """One logical line from its bytes: decoded, undecorated, its rank and level told apart from its text."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    text = text.rstrip()
    if text[:1] in _BOX and text[-1:] in _BOX and len(text) > 1:  # a box around a traceback
        text = text[1:-1].rstrip()
        text = text[1:] if text[:1] == " " else text
    head = text[:160]
    rank: Optional[int] = None
    found = _RANK.search(head) if "[" in head or "ank" in head or "TP" in head else None
    if found:
        rank = next(int(group) for group in found.groups() if group is not None)
    level = "" if "/STDERR]" in head else _level(head)  # of whoever caught the line, not of who wrote it
    while True:
        prefix = _PREFIX.match(text)
        if not prefix or not prefix.end():
            break
        text = text[prefix.end() :]
        if text[:1] == " " and (text[1:2] != " " or text[1:3] == "  "):
            text = text[1:]
    quoted = bool(_QUOTED.match(text))
    return Line(number, text, rank, level, quoted)


def _level(head: str) -> str:
    found = _LEVEL.search(head)
    if not found:
        return ""
    debug, info, warning, error, *letters = found.groups()
    if debug or info:
        return "debug" if debug else "info"
    if warning or error:
        return "warning" if warning else "error"
    return _LETTERS[next(letter for letter in letters if letter)]
