"""How fast a job moves, so that "it stands still" means something for this one."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Deque, Optional

_KEPT = 32  # moves that "usual" is taken from


class Pace:
    """The times of its last moves."""

    def __init__(self) -> None:
        self._times: Deque[float] = deque(maxlen=_KEPT)
        self._before = 0
        self._before_s: Optional[float] = None

    def moved(self, at: float) -> None:
        self._times.append(at)

    def moved_before(self, moves: int, over_s: float) -> None:
        """Of moves that nobody saw (a log read again) only the number is known, not when each came.
        `over_s`: since the job began."""
        self._before += moves
        self._before_s = over_s / self._before

    @property
    def last(self) -> Optional[float]:
        return self._times[-1] if self._times else None

    @property
    def known(self) -> bool:
        """Has it ever moved?"""
        return bool(self._times) or self._before_s is not None

    @property
    def usual_s(self) -> float:
        """Between two moves; 0 where that is not known."""
        times = list(self._times)
        if len(times) <= 2:
            return self._before_s or 0.0
        return median(times[at] - times[at - 1] for at in range(1, len(times)))

    def skip(self, gap_s: float, at: float) -> None:
        """Nobody looked for so long: that time does not count."""
        self._times = deque((min(time + gap_s, at) for time in self._times), maxlen=_KEPT)
