"""Means over a stretch of time. One reading of a GPU's utilisation swings from 0 to 95 % at half duty, so no detector
looks at a single one.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, List, Optional

_BUCKETS = 60  # a long window is as cheap as a short one
_GAP_S, _PARTS = 30.0, 5  # longest time without a reading, and the part of the span that it may be


class Window:
    """The mean of what was read in the last `span_s` seconds, kept in buckets of equal length.

    `full`: it reaches back that far, so that its mean is one of the whole stretch. A long time without a reading (a
    silent driver, a machine that slept) begins it anew: what came before is another stretch.
    """

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._width = span_s / _BUCKETS
        self._buckets: Deque[List[float]] = deque()  # [begin, sum, count]
        self._since: Optional[float] = None
        self._last = 0.0
        self._longest_gap_s = max(span_s / _PARTS, _GAP_S)

    def add(self, at: float, value: float) -> None:
        if self._since is not None and at - self._last > self._longest_gap_s:
            self.clear()
        if self._since is None:
            self._since = at
        self._last = at
        if not self._buckets or at - self._buckets[-1][0] >= self._width:
            self._buckets.append([at, 0.0, 0])
        self._buckets[-1][1] += value
        self._buckets[-1][2] += 1
        while at - self._buckets[0][0] > self.span_s:
            self._buckets.popleft()

    @property
    def mean(self) -> Optional[float]:
        """None where nothing was read."""
        count = sum(bucket[2] for bucket in self._buckets)
        return sum(bucket[1] for bucket in self._buckets) / count if count else None

    def full(self, at: float) -> bool:
        if self._since is None or at - self._last > self._longest_gap_s:
            return False
        return at - self._since >= self.span_s

    def clear(self) -> None:
        self._buckets.clear()
        self._since = None
