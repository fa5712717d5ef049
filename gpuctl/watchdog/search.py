"""The search for the largest value of a parameter that fits, by as few real attempts as possible.

Each attempt costs a loading of the model, so the memory that telemetry saw decides where to try next; in turn with
halving what is left between good and bad, since the curve is only a hint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Union

from gpuctl.watchdog.curve import likeliest_within, with_loaded

Number = Union[int, float]

_FIRST = 7
"""Attempts that follow the curve alone."""
_NEAR = 0.02
"""How good the curve is taken to be, as a share of where it ends."""


@dataclass(frozen=True)
class Search:
    """Values are `low`, `high`, and the multiples of `step` between them. `fitted` maps to the peak memory in MiB, None
    where it was not read; `loaded_mib` is what the model alone takes; `within` is the share of a value that is near
    enough."""

    low: Number
    high: Number
    step: Number
    within: float = 0.0
    fitted: Mapping[Number, Optional[int]] = field(default_factory=dict)
    failed: List[Number] = field(default_factory=list)
    total_mib: Optional[int] = None
    loaded_mib: Optional[int] = None

    @property
    def good(self) -> Optional[Number]:
        """The largest value known to fit."""
        return max((value for value in self.fitted if self.low <= value <= self.high), default=None)

    @property
    def bad(self) -> Optional[Number]:
        """The smallest value known not to fit. One below a value that fitted was bad luck, or a leak."""
        good = self.good
        above = [value for value in self.failed if value <= self.high and (good is None or value > good)]
        return min(above, default=None)

    def next_value(self) -> Optional[Number]:
        """What to try next; None where the answer is known: `good` is the largest, or nothing fits."""
        good, bad = self.good, self.bad
        if good is None:
            return self.low if bad is None or bad > self.low else None
        top = self.high if bad is None else self._below(bad)
        if good >= top or (bad is not None and bad - good <= self.within * good):
            return None
        guess = self._guess(good, bad)
        return min(max(self._rounded(guess), self._above(good)), top)

    def _guess(self, good: Number, bad: Optional[Number]) -> float:
        """First where the curve says that it surely fits, then a little beyond where it ends, then where it ends. But
        every other attempt halves what is left, so that a misleading curve costs no more than twice the halving."""
        known = len(self.fitted) + len(self.failed)
        top = self.high if bad is None else bad
        middle = self._middle(good, top)
        if self.total_mib is None or (known > _FIRST and known % 2):
            return self.high if known == 1 else middle
        end = likeliest_within(self._points(), self.total_mib)
        if end is None:
            return self.high if known == 1 else middle
        near = max(self.step, _NEAR * end)
        surely = end - 2 * near
        if good + near < surely < top or (bad is None and surely >= top):
            return surely
        if end + near < top - self.step and good < end + near:
            return end + near
        return end if good <= end < top else middle

    def _middle(self, good: Number, bad: Number) -> float:
        """Far apart, the middle of their magnitudes; near, of themselves."""
        return math.sqrt(good * bad) if 0 < 4 * good < bad else (good + bad) / 2

    def _points(self) -> Dict[float, float]:
        points = {float(value): float(mib) for value, mib in self.fitted.items() if mib is not None}
        return with_loaded(points, self.loaded_mib)

    def _rounded(self, value: float) -> Number:
        """Down to the step."""
        steps = math.floor(value / self.step + 1e-9)
        rounded = steps * self.step
        return rounded if isinstance(self.step, int) else float(f"{rounded:.12g}")

    def _above(self, value: Number) -> Number:
        """The next value that can be tried."""
        following = self._rounded(value) + self.step
        return min(self.high, following if isinstance(self.step, int) else float(f"{following:.12g}"))

    def _below(self, value: Number) -> Number:
        """The last value below that can be tried."""
        rounded = self._rounded(value)
        if rounded >= value:
            rounded = self._rounded(value - self.step / 2 if isinstance(self.step, float) else value - self.step)
        return max(self.low, rounded)
