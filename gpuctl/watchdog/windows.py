"""Means over a stretch of time. One reading of a GPU's utilisation swings from 0 to 95 % at half duty, so no detector
looks at a single one.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, List, Optional

_BUCKETS = 60  # a long window is as cheap as a short one


class Window:
    """The mean of what was read in the last `span_s` seconds, kept in buckets of equal length.

    `full`: it reaches back that far, so that its mean is one of the whole stretch.
    """

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._width = span_s / _BUCKETS
        self._buckets: Deque[List[float]] = deque()  # [begin, sum, count]
        self._since: Optional[float] = None

    def add(self, at: float, value: float) -> None:
        if self._since is None:
            self._since = at
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
        return self._since is not None and at - self._since >= self.span_s

    def clear(self) -> None:
        self._buckets.clear()
        self._since = None
