"""The memory curve: how much a job needs as a function of one parameter, from what telemetry saw of attempts.

constant (weights, optimizer) + linear (activations) + quadratic (attention): none of them can be negative. It is a hint
where to try next, never a proof: an allocator keeps what it once had, so a peak may be more than was needed.
"""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

HEADROOM = 0.97
"""The share of a GPU's memory that a job may be expected to get: driver and allocator have the rest."""

Coefficients = Tuple[float, float, float]

_SIMPLER = 0.01  # a fit with fewer terms is preferred where it is off by no more than this share
_FULL: Tuple[int, ...] = (0, 1, 2)


def largest_within(points: Mapping[float, float], limit: float) -> Optional[float]:
    """The parameter's value at which memory reaches `limit`; None where the points don't tell.

    `points`: value → memory that was seen in use, in the unit of `limit`; what the model alone takes stands at 0.
    """
    fitted = fit(points)
    if fitted is None:
        return None
    constant, linear, quadratic = fitted
    room = limit - constant
    if room <= 0 or linear + quadratic <= 0:
        return None
    # The root of quadratic·x² + linear·x = room, in the form that is exact where the quadratic term vanishes.
    return 2 * room / (linear + math.sqrt(linear * linear + 4 * quadratic * room))


def likeliest_within(points: Mapping[float, float], limit: float) -> Optional[float]:
    """As `largest_within`. Two points don't tell how much of it is quadratic: between none of it and all of it, then,
    the middle of the magnitudes."""
    line = largest_within(points, limit)
    if line is None or len(points) != 2:
        return line
    squared = largest_within({value * value: memory for value, memory in points.items()}, limit)
    return line if squared is None else math.sqrt(line * math.sqrt(squared))


def with_loaded(points: Mapping[float, float], loaded: Optional[float]) -> Dict[float, float]:
    """With what the model alone takes as the value 0, where the points bear it out: it is read once the job has said
    that it is ready, a little late. Memory that grows no slower than linearly leaves it between the smallest point and
    the line through the two smallest."""
    smallest = sorted(points.items())[:2]
    if loaded is None or not smallest or loaded >= smallest[0][1]:
        return dict(points)
    if len(smallest) > 1:
        (value, memory), (other, more) = smallest
        grown = max(0.0, more - memory) / (other - value) * value
        if loaded < memory - 2 * grown:
            return dict(points)
    return {0.0: loaded, **points}


def fit(points: Mapping[float, float]) -> Optional[Coefficients]:
    """The least-squares curve with no negative coefficient: with three of them, all subsets can be tried."""
    if len(points) < 2:
        return None
    scale = max(abs(value) for value in points) or 1.0
    samples = [(value / scale, memory) for value, memory in sorted(points.items())]
    best: Optional[Tuple[float, Coefficients]] = None
    worst = max(memory for _, memory in samples) * _SIMPLER
    for terms in _subsets(len(samples)):
        found = _least_squares(samples, terms)
        if found is None or min(found) < 0:
            continue
        error = max(abs(_at(found, value) - memory) for value, memory in samples)
        if best is None or error < best[0] - worst:
            best = (error, found)
    if best is None:
        return None
    constant, linear, quadratic = best[1]
    return constant, linear / scale, quadratic / scale**2


def _subsets(samples: int) -> List[Tuple[int, ...]]:
    """Terms to try, the likeliest first: constant and linear, then with the quadratic, then others."""
    pairs = [(0, 1), (0, 2), (1, 2)]
    return [pairs[0], *([_FULL] if samples >= len(_FULL) else []), *pairs[1:], (1,), (2,), (0,)]


def _at(found: Coefficients, value: float) -> float:
    return found[0] + found[1] * value + found[2] * value * value


def _least_squares(samples: Sequence[Tuple[float, float]], terms: Tuple[int, ...]) -> Optional[Coefficients]:
    """By the normal equations, solved by Cramer's rule: at most three unknowns. None where they have no one answer."""
    rows = [[sum(value ** (one + other) for value, _ in samples) for other in terms] for one in terms]
    right = [sum(memory * value**one for value, memory in samples) for one in terms]
    whole = _determinant(rows)
    if abs(whole) < 1e-12:
        return None
    found = [0.0, 0.0, 0.0]
    for place, term in enumerate(terms):
        replaced = [[*row[:place], right[line], *row[place + 1 :]] for line, row in enumerate(rows)]
        found[term] = _determinant(replaced) / whole
    return found[0], found[1], found[2]


def _determinant(rows: Sequence[Sequence[float]]) -> float:
    if len(rows) == 1:
        return rows[0][0]
    return sum(
        (-1.0) ** column * value * _determinant([[*row[:column], *row[column + 1 :]] for row in rows[1:]])
        for column, value in enumerate(rows[0])
    )
