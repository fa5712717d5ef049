"""The ladder: which values to try next when GPU memory has run out.

It knows what the job file says (`on_oom`) and what earlier attempts with which values came to. It never gives a
combination that has failed, or one beyond it; stays within floor and multiple, keeps a product where the job says so,
and ends with a sentence.

Which value is next is a matter of cost. One that is too large costs a loading of the model; one that is too small costs
speed for as long as the job runs. So from a value known to fit, one above it is tried where what it gains, if it fits,
outweighs what it loses, if it does not. Without one, the steps down grow where loading is dear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from gpuctl.watchdog.curve import HEADROOM, largest_within, with_loaded
from gpuctl.watchdog.ledger import at_or_beyond
from gpuctl.wire.runspec import Number, OnOom, Scalar

DEAR_LOADING_S = 60.0
"""From here on loading is dear: steps down grow. Where nobody knows how long the job runs once it fits, it is also what
a faster run is taken to be worth."""
_SURE_OF_CURVE = 0.8
_SURE_OF_MIDDLE = 0.5
"""How likely a value between good and bad fits: one that the memory curve gives, and the middle of their magnitudes."""

Params = Dict[str, Scalar]


@dataclass(frozen=True)
class Step:
    """All parameters of the next attempt, and why these."""

    params: Params
    why: str


@dataclass(frozen=True)
class Exhausted:
    """There is nothing left to give way on. `why` is a clause for people."""

    why: str


@dataclass(frozen=True)
class Seen:
    """What is known of combinations of values: those that ran out of memory, those that fitted, and what an attempt
    costs before it shows which (`loading_s`; None: unknown, so taken for dear, but not for so dear as to leap)."""

    failed: Sequence[Mapping[str, Scalar]] = ()
    fitted: Sequence[Mapping[str, Scalar]] = field(default=())
    loading_s: Optional[float] = None
    work_s: Optional[float] = None  # how long the job runs once it fits
    peaks: Sequence[Tuple[Mapping[str, Scalar], float]] = field(default=())  # of those that fitted, in MiB
    loaded_mib: Optional[float] = None  # what the model alone takes
    total_mib: Optional[float] = None
    overdrawn: float = 1.0  # how many times an empty GPU the failed request would have needed


def next_step(
    on_oom: OnOom, params: Mapping[str, Scalar], seen: Seen, *, reduce: Optional[Sequence[str]] = None
) -> Union[Step, Exhausted]:
    """The values after `params`, which have just failed.

    The parameters give way in the order of `reduce` (`on_oom`'s if left out): first each down to the value that is
    known to be good, since all of those together fit; then each further down.
    """
    names = list(on_oom.reduce if reduce is None else reduce)
    if not names:
        return Exhausted("the job names no parameter that could be reduced (`on_oom: {reduce: …}`)")
    tried = [*seen.failed, params]
    rungs = [_Rung(on_oom, name, params, seen) for name in names]
    for down_to_good in (True, False):
        for rung in rungs:
            for candidate in rung.down_to_good() if down_to_good else rung.further_down():
                changed = rung.with_value(candidate)
                if changed is not None and not any(at_or_beyond(changed, failed, on_oom) for failed in tried):
                    return Step(changed, f"{rung.name} {_show(rung.value)} → {_show(changed[rung.name])}")
    return Exhausted("; ".join(rung.end() for rung in rungs))


def step_to(
    on_oom: OnOom, params: Mapping[str, Scalar], seen: Seen, name: str, limit: Number
) -> Union[Params, Exhausted, None]:
    """The values with this one as large as its bounds and `limit` allow. None where that has failed already."""
    rung = _Rung(on_oom, name, params, seen)
    value = rung.at_most(limit)
    changed = rung.with_value(value) if value is not None else None
    if changed is None:
        return Exhausted(f"{name} may be {_show(limit)} at most, and its floor, list or multiple has nothing so small")
    return None if any(at_or_beyond(changed, failed, on_oom) for failed in seen.failed) else changed


class _Rung:
    """One parameter: its bounds, and its possible next values."""

    def __init__(self, on_oom: OnOom, name: str, params: Mapping[str, Scalar], seen: Seen) -> None:
        self.name = name
        self.value = params.get(name)
        self._on_oom = on_oom
        self._params = dict(params)
        self._seen = seen
        self._whole = isinstance(self.value, int)
        self._floor: Number = on_oom.floor.get(name, 1 if self._whole else self._thousandth())
        self._multiple = on_oom.multiple_of.get(name, 1)
        self._listed = sorted(set(on_oom.values.get(name, ())), reverse=True)

    def down_to_good(self) -> Iterator[Number]:
        """The known-good value; before it one above, where that is worth its risk."""
        good = self._good()
        if good is None:
            return
        guess, sure = self._between(good)
        for candidate in self._allowed([guess], above=good):
            if self._worthwhile(good, candidate, sure):
                yield candidate
        yield from self._allowed([good])

    def further_down(self) -> Iterator[Number]:
        """By the factor (or the list), down to the floor. Where loading is dear, the step grows with each failure."""
        if self._listed:
            yield from self._allowed(self._listed)
            return
        factor, lowest = self._on_oom.factor, self._lowest()
        value = min(self._number() * factor ** self._leap(), self._number() / self._seen.overdrawn)
        while lowest < value < self._number() and value * factor < value:
            yield from self._allowed([self._rounded(value)])
            value *= factor
        yield from self._allowed([lowest])

    def _between(self, good: Number) -> Tuple[Number, float]:
        """A value between good and bad, and how likely it fits."""
        curve = self._curve()
        middle = math.sqrt(float(good) * self._failing())
        guess, sure = (curve, _SURE_OF_CURVE) if curve is not None else (middle, _SURE_OF_MIDDLE)
        if self._listed:
            return self._ruled(guess) or good, sure
        return self._rounded(guess), sure

    def _curve(self) -> Optional[float]:
        """Where memory reaches its limit, by what was seen with the rest as it is; None where that is no lower."""
        points = {float(fitted[self.name]): peak for fitted, peak in self._seen.peaks if self._is_like(fitted)}
        if self._seen.total_mib is None:
            return None
        guess = largest_within(with_loaded(points, self._seen.loaded_mib), HEADROOM * self._seen.total_mib)
        return guess if guess is not None and guess < self._failing() else None

    def _worthwhile(self, good: Number, candidate: Number, sure: float) -> bool:
        """Does it gain more, if it fits, than it costs, if it does not? A job is taken to go as fast as the value is
        large: with twice the batch in half the time."""
        if self._seen.loading_s is None:
            return False
        work_s = self._seen.work_s if self._seen.work_s is not None else DEAR_LOADING_S
        return sure * (1 - float(good) / float(candidate)) * work_s > (1 - sure) * self._seen.loading_s

    def _leap(self) -> int:
        """How many steps to go down at once: one; or as many as failed with the rest as it is, where each is dear."""
        if self._seen.loading_s is None or self._seen.loading_s < DEAR_LOADING_S:
            return 1
        failed = {failed[self.name] for failed in (*self._seen.failed, self._params) if self._is_like(failed)}
        return max(1, len(failed))

    def _is_like(self, params: Mapping[str, Scalar]) -> bool:
        """Are these the present values but for this one, which is a number too?"""
        return _is_number(params.get(self.name)) and {**params, self.name: 0} == {**self._params, self.name: 0}

    def with_value(self, candidate: Number) -> Optional[Params]:
        """All parameters with this one changed. A kept product is made up for by its other factor, for which this one
        may have to go a little lower still; None where no value does it."""
        other = next((name for name in self._on_oom.keep_product if name != self.name), None)
        if self.name not in self._on_oom.keep_product or other is None:
            return {**self._params, self.name: candidate}
        factor = self._params.get(other)
        if not self._whole or not isinstance(factor, int) or isinstance(factor, bool):
            return None
        product = int(self._number()) * factor
        for value in range(int(candidate), max(1, int(self._lowest())) - 1, -1):
            if product % value == 0 and self._ruled(value) == value:
                return {**self._params, self.name: value, other: product // value}
        return None

    def end(self) -> str:
        """Why there is nothing below."""
        if not self._numeric():
            return f"{self.name} is no number"
        if self._listed:
            return f"{self.name} is {_show(self.value)}, and `values` has nothing lower that has not failed"
        if self._number() <= self._floor:
            return f"{self.name} is {_show(self.value)}, its floor"
        return f"{self.name} is {_show(self.value)}, and nothing down to its floor {_show(self._floor)} is left to try"

    def at_most(self, limit: Number) -> Optional[Number]:
        """The largest value within the bounds that is no larger."""
        value = self._ruled(limit)
        return next(self._allowed([value]), None) if value is not None else None

    def _good(self) -> Optional[Number]:
        """The largest value below those that fail that is said, or was seen with the rest as it is, to fit."""
        values: List[Number] = [self._on_oom.known_good[self.name]] if self.name in self._on_oom.known_good else []
        values += [fitted[self.name] for fitted in self._seen.fitted if self._is_like(fitted)]  # type: ignore[misc]
        ruled = [self._ruled(value) for value in values if float(value) < self._failing()]
        return max(self._allowed([value for value in ruled if value is not None]), default=None)

    def _failing(self) -> float:
        """The smallest value that is known to fail with the rest as it is: the present one, or less."""
        found = [self._number()]
        for failed in self._seen.failed:
            value = failed.get(self.name)
            if _is_number(value) and at_or_beyond({**self._params, self.name: value}, failed, self._on_oom):  # type: ignore[dict-item]
                found.append(float(value))  # type: ignore[arg-type]
        return min(found)

    def _ruled(self, value: Number) -> Optional[Number]:
        """Down to what the list, else the multiple, has."""
        if self._listed:
            return next((listed for listed in self._listed if listed <= value), None)
        return int(value) // self._multiple * self._multiple if self._whole else value

    def _allowed(self, values: Sequence[Number], *, above: Optional[Number] = None) -> Iterator[Number]:
        """Those within the bounds, and above the given one."""
        for value in values:
            if self._numeric() and self._floor <= value < self._number() and (above is None or value > above):
                yield value

    def _thousandth(self) -> float:
        """The floor of a fraction that has none: of the largest that was tried. Halving it would never end."""
        values = [tried.get(self.name) for tried in (*self._seen.failed, self._params)]
        return max((float(value) for value in values if _is_number(value)), default=0.0) / 1000  # type: ignore[arg-type]

    def _numeric(self) -> bool:
        return _is_number(self.value)

    def _number(self) -> float:
        return float(self.value) if self._numeric() else 0.0  # type: ignore[arg-type]

    def _rounded(self, value: float) -> Number:
        """Down to the multiple, never below the floor."""
        if not self._whole:
            return max(value, float(self._floor))
        return max(int(value) // self._multiple * self._multiple, self._lowest())

    def _lowest(self) -> Number:
        """The floor, up to the multiple."""
        return -(-math.ceil(self._floor) // self._multiple) * self._multiple if self._whole else float(self._floor)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _show(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
