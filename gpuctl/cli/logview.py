"""A log on a terminal: what a job printed, without what the terminal would obey.

In a pipe or a file a log arrives byte for byte; here colours, cursor moves and titles are left out. Pieces may end in
the middle of a character or of an escape sequence: the rest is waited for.
"""

from __future__ import annotations

import codecs
import re

_KEPT = "\n\t\r"  # \r: progress bars draw over themselves
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-9;?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-OQ-WYZ\\`-~])"
)
_BEGUN = re.compile(r"\x1b(?:\[[0-9;?<=>]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)?$")
_LONGEST = 4096  # a sequence that never ends is dropped, not collected


class LogView:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def shown(self, data: bytes, *, final: bool = False) -> str:
        """The text to show for the next bytes."""
        text = _SEQUENCE.sub("", self._rest + self._decoder.decode(data, final))
        begun = _BEGUN.search(text)
        self._rest = ""
        if begun and not final and len(begun.group()) < _LONGEST:
            self._rest = begun.group()
            text = text[: begun.start()]
        return "".join(char for char in text if char in _KEPT or not _is_control(char))


def _is_control(char: str) -> bool:
    code = ord(char)
    return code < 0x20 or 0x7F <= code < 0xA0
