"""The ladder: which values to try next when GPU memory has run out.

It knows what the job file says (`on_oom`) and what earlier attempts with which values came to. It never gives the same
combination twice, stays within floor and multiple, keeps a product where the job says so, and ends with a sentence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Union

from gpuctl.wire.runspec import Number, OnOom, Scalar

DEAR_LOADING_S = 60.0
"""From here on a known-good value is taken at once: trying one between costs another loading."""

Params = Dict[str, Scalar]


@dataclass(frozen=True)
class Step:
    """All parameters of the next attempt, and why these."""

    params: Params
    why: str


@dataclass(frozen=True)
class Exhausted:
    """There is nothing left to give way on. `why` completes "…, because"."""

    why: str


def next_step(
    on_oom: OnOom,
    params: Mapping[str, Scalar],
    failed: Sequence[Mapping[str, Scalar]],
    *,
    reduce: Optional[Sequence[str]] = None,
    fitted: Sequence[Mapping[str, Scalar]] = (),
    loading_s: Optional[float] = None,
) -> Union[Step, Exhausted]:
    """The values after `params`, which have just failed.

    `failed` are the combinations known to fail, `fitted` those known to fit; `reduce` names the parameters that may give
    way, in order (those of `on_oom` if left out). `loading_s` says what a failed attempt costs; None: unknown, so dear.
    """
    names = list(on_oom.reduce if reduce is None else reduce)
    if not names:
        return Exhausted("the job names no parameter that could be reduced (`on_oom: {reduce: …}`)")
    reasons = []
    for name in names:
        value = params.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            reasons.append(f"{name} is no number")
            continue
        rung = _Rung(on_oom, name, value, params, failed, fitted, loading_s)
        for candidate in rung.candidates():
            changed = rung.with_value(candidate)
            if changed is not None and not any(_same(changed, seen) for seen in failed):
                return Step(changed, f"{name} {_show(value)} → {_show(candidate)}{rung.reason(candidate)}")
        reasons.append(f"{name} is {_show(value)} and can't go lower{rung.bound()}")
    return Exhausted("; ".join(reasons))


class _Rung:
    """One parameter's possible next values, best first."""

    def __init__(
        self,
        on_oom: OnOom,
        name: str,
        value: Number,
        params: Mapping[str, Scalar],
        failed: Sequence[Mapping[str, Scalar]],
        fitted: Sequence[Mapping[str, Scalar]],
        loading_s: Optional[float],
    ) -> None:
        self._on_oom = on_oom
        self._name = name
        self._value = value
        self._params = dict(params)
        self._failed = failed
        self._loading_s = loading_s
        self._floor: Number = on_oom.floor.get(name, 1 if isinstance(value, int) else 0)
        self._multiple = on_oom.multiple_of.get(name, 1)
        self._good = self._known_good(fitted)

    def candidates(self) -> List[Number]:
        """Lower values within the bounds, in the order in which to try them."""
        if self._name in self._on_oom.values:
            listed = sorted(set(self._on_oom.values[self._name]), reverse=True)
            return [value for value in listed if self._fits_bounds(value)]
        found: List[Number] = []
        good = self._good
        if good is not None:
            if self._loading_s is not None and self._loading_s < DEAR_LOADING_S:
                between = self._rounded(math.sqrt(float(good) * float(self._value)))
                found += [between] if between > good else []
            found.append(good)
        value = float(self._value) * self._on_oom.factor
        while self._lowest() < value < self._value and value * self._on_oom.factor < value:
            found.append(self._rounded(value))
            value *= self._on_oom.factor
        found.append(self._lowest())
        return [candidate for candidate in found if self._fits_bounds(candidate)]

    def with_value(self, candidate: Number) -> Optional[Params]:
        """All parameters with this one changed; a kept product is made up for by the other factors. None where it
        can't be."""
        changed = {**self._params, self._name: candidate}
        kept = self._on_oom.keep_product
        if self._name not in kept:
            return changed
        other = next((name for name in kept if name != self._name), None)
        factor = self._params.get(other) if other is not None else None
        if other is None or isinstance(factor, (bool, str)) or factor is None or candidate == 0:
            return None
        product = float(self._value) * float(factor)
        quotient = product / float(candidate)
        if quotient != round(quotient):
            return self._nearest_divisor(candidate, int(product), other)
        return {**changed, other: int(quotient)}

    def reason(self, candidate: Number) -> str:
        return ", which is known to fit" if candidate == self._good else ""

    def bound(self) -> str:
        if self._name in self._on_oom.values:
            return " (the last of `values`)"
        return f" (floor {_show(self._floor)})" if self._value <= self._floor else " without repeating what failed"

    def _known_good(self, fitted: Sequence[Mapping[str, Scalar]]) -> Optional[Number]:
        """The largest value below the present one that is said or seen to fit with the rest as it is."""
        stated = self._on_oom.known_good.get(self._name)
        values: List[Number] = [stated] if stated is not None else []
        for seen in fitted:
            value = seen.get(self._name)
            if (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and _same({**seen, self._name: 0}, {**self._params, self._name: 0})
            ):
                values.append(value)
        return max((value for value in values if value < self._value), default=None)

    def _fits_bounds(self, value: Number) -> bool:
        return self._floor <= value < self._value

    def _rounded(self, value: float) -> Number:
        if not isinstance(self._value, int):
            return value if self._floor <= value else self._floor
        return max(int(value) // self._multiple * self._multiple, self._lowest())

    def _lowest(self) -> Number:
        if not isinstance(self._value, int):
            return self._floor
        return -(-int(math.ceil(self._floor)) // self._multiple) * self._multiple

    def _nearest_divisor(self, candidate: Number, product: int, other: str) -> Optional[Params]:
        for value in range(int(candidate), max(int(self._lowest()), 1) - 1, -1):
            if product % value == 0 and value % self._multiple == 0:
                return {**self._params, self._name: value, other: product // value}
        return None


def _same(one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> bool:
    return {**one} == {**other}


def _show(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
