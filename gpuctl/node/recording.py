"""A judge that keeps what it is given: `attempts/<n>/samples.jsonl`, for `gpuctl replay`.

One line a second, thinned as it ages: a run of a month leaves a few MiB. What can't be written is not missed: the disk
may be full, and then there are better uses for the last of it.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence

from gpuctl.watchdog.judge import Guard, Judge, Notice
from gpuctl.watchdog.moments import Moment, Reading, memory_mib, readings, thinned
from gpuctl.wire.incidents import Evidence, Exit, Incident
from gpuctl.wire.runspec import Watch
from gpuctl.wire.samples import Sample, TreeIo

NAME = "samples.jsonl"
EVERY_S = 0.9  # a look comes about once a second: none is to be passed over for a hair
QUIET_S = 15.0  # less than what looks like a machine that slept
THIN_AFTER = 3600  # lines


@dataclass
class _Pending:
    """What came in since the last moment that was kept."""

    read: Dict[str, int] = field(default_factory=dict)
    cut: List[str] = field(default_factory=list)
    gpus: Dict[str, Reading] = field(default_factory=dict)
    error: Optional[str] = None
    io: Optional[TreeIo] = None
    facts: List[Evidence] = field(default_factory=list)


class RecordingJudge(Judge):
    """The judge, with a file beside the attempt's log."""

    def __init__(
        self, folder: str, watch: Watch, *, type: str = "task", started: Optional[float] = None,
        guard: Optional[Guard] = None,
    ) -> None:  # fmt: skip
        super().__init__(watch, type=type, started=started, guard=guard)
        self._file = MomentFile(os.path.join(folder, NAME))
        self._sizes: Dict[str, int] = {}  # by log: all bytes that came
        self._pending = _Pending()
        self._next_moment = self._last_kept = 0.0

    def feed(self, source: str, data: bytes, at: float) -> List[Notice]:
        self._sizes[source] = self._pending.read[source] = self._sizes.get(source, 0) + len(data)
        return super().feed(source, data, at)

    def truncated(self, source: str) -> None:
        if source not in self._pending.cut:
            self._pending.cut.append(source)
        super().truncated(source)

    def sample(self, sample: Sample) -> None:
        self._pending.gpus, self._pending.error = readings(sample), sample.error
        super().sample(sample)

    def io(self, io: TreeIo) -> None:
        self._pending.io = io
        super().io(io)

    def fact(self, evidence: Evidence) -> None:
        self._pending.facts.append(evidence)
        super().fact(evidence)

    def tick(self, at: float) -> List[Incident]:
        if at >= self._next_moment:
            self._next_moment = at + EVERY_S
            self._keep(at)
        return super().tick(at)

    def ends(self, at: float) -> None:
        """The attempt is over, or will be ended for what was found: that is found again only if this moment is kept."""
        self._keep(at, always=True)

    def exited(self, exit: Exit, at: float, facts: Sequence[Evidence] = ()) -> Optional[Incident]:
        self._pending.facts += facts
        self.ends(at)
        return super().exited(exit, at, facts)

    def _keep(self, at: float, *, always: bool = False) -> None:
        """That nothing came in is worth a moment too, now and then: limits are passed in silence."""
        if always or self._pending != _Pending() or at - self._last_kept >= QUIET_S:
            pending, self._pending, self._last_kept = self._pending, _Pending(), at
            self._file.append(Moment(mono_s=math.ceil(at * 100) / 100, **vars(pending)))


class MomentFile:
    def __init__(self, path: str, *, thin_after: int = THIN_AFTER) -> None:
        self.path = path
        self._thin_after = thin_after
        self._lines = 0  # since it was last thinned

    def append(self, moment: Moment) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, moment.to_line().encode("ascii") + b"\n")
            finally:
                os.close(fd)
            self._lines += 1
            if self._lines >= self._thin_after:
                self._lines = 0
                self._thin(moment.mono_s)

    def _thin(self, now: float) -> None:
        aside = f"{self.path}.new"
        with open(aside, "w", encoding="ascii") as file:
            file.writelines(f"{moment.to_line()}\n" for moment in thinned(read_moments(self.path), now))
        os.rename(aside, self.path)


def peaks(folder: str) -> Dict[int, int]:
    """The most memory that was seen of each GPU, by index, in the attempt of this folder."""
    found: Dict[int, int] = {}
    for moment in read_moments(os.path.join(folder, NAME)):
        for index, reading in moment.gpus.items():
            used_mib = memory_mib(reading)
            if used_mib is not None:
                found[int(index)] = max(used_mib, found.get(int(index), 0))
    return found


def read_moments(path: str) -> List[Moment]:
    """In order; none where there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = [Moment.from_line(line) for line in file]
    except FileNotFoundError:
        return []
    return [moment for moment in found if moment is not None]
