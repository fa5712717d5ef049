"""A log on its own, explained: what `gpuctl explain` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Optional

from gpuctl.watchdog import verdict
from gpuctl.watchdog.reading import Reading, line_reader
from gpuctl.wire.incidents import Incident


@dataclass(frozen=True)
class Explanation:
    """`incident` is None where nothing failed."""

    incident: Optional[Incident]
    relaunch_reduced: bool = False
    lines: List[Dict[str, Any]] = field(default_factory=list)

    def to_json(self, file: str) -> Dict[str, Any]:
        """The object that CONTRACT promises for one file."""
        found = self.incident
        return {
            "file": file,
            "verdict": self.sentence,
            "class": found.cls if found else None,
            "fatal": found.fatal if found else False,
            "phase": found.phase if found else None,
            "gpu": found.gpu if found else None,
            "requested_bytes": found.requested_bytes if found else None,
            "total_bytes": found.total_bytes if found else None,
            "free_bytes": found.free_bytes if found else None,
            "relaunch_reduced": self.relaunch_reduced,
            "evidence": self.lines,
            "advice": found.advice if found else "",
        }

    @property
    def sentence(self) -> str:
        if self.incident is None:
            return "Nothing in it says that it failed."
        name = self.incident.cls.replace("_", " ")
        return f"It failed: {name}." if self.incident.fatal else f"It goes on, but: {name}."


_END = 64 * 1024  # how a log ends is read line by line, however it comes
_PIECE = 8 * 1024


def explain(chunks: Iterable[bytes]) -> Explanation:
    """Read one log to its end and say what happened."""
    reading, lines = Reading(), line_reader()
    for chunk in _ending_small(chunks):
        for line in lines.feed(chunk):
            reading.take(line, "log", 0.0)
    for line in lines.close():
        reading.take(line, "log", 0.0)
    found = verdict.incident(reading)
    if found is None:
        return Explanation(None)
    clue = verdict.root(reading)
    reduced = found.fatal and clue is not None and verdict.may_reduce(clue)
    shown = [{"line": evidence.line, "text": evidence.text} for evidence in found.evidence]
    return Explanation(found, reduced or _lost_request_may(reading, found), shown)


def _ending_small(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, with the end in small pieces, which the reader reads whole."""
    held = b""
    for chunk in chunks:
        held += chunk
        if len(held) > _END:
            yield held[:-_END]
            held = held[-_END:]
    for start in range(0, len(held), _PIECE):
        yield held[start : start + _PIECE]


def _lost_request_may(reading: Reading, found: Incident) -> bool:
    """A request that ran out of memory would have fitted smaller, though the server goes on."""
    clue = verdict.root(reading) or verdict.finding(reading)
    return not found.fatal and clue is not None and clue.scope in ("request", "thread") and verdict.may_reduce(clue)
