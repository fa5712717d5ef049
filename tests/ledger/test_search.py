"""The curve and the search: they find the largest value that fits, whatever the memory's shape, in few attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuctl.watchdog.curve import fit, largest_within
from gpuctl.watchdog.search import Search

TOTAL = 97887


def found(search: Search, need: Callable[[float], float], *, telemetry: bool = True) -> tuple[float | None, int]:
    """The answer, and how many attempts it took."""
    attempts = 0
    while (value := search.next_value()) is not None:
        assert search.low <= value <= search.high
        assert value not in search.fitted and value not in search.failed, "nothing is tried twice"
        attempts += 1
        assert attempts < 100
        if need(value) <= TOTAL:
            peak = int(need(value)) if telemetry else None
            search = replace(search, fitted={**search.fitted, value: peak}, total_mib=TOTAL)
        else:
            search = replace(search, failed=[*search.failed, value])
    return search.good, attempts


@pytest.mark.parametrize("shape", [(50000, 100, 0), (3000, 20, 0.5), (60000, 0, 3), (0, 1, 0.0001)])
def test_the_curve_is_found_again(shape: tuple[float, float, float]) -> None:
    constant, linear, quadratic = shape
    points = {x: constant + linear * x + quadratic * x * x for x in (16.0, 64.0, 100.0, 240.0)}
    assert fit(points) == pytest.approx(shape, rel=0.02, abs=max(points.values()) * 0.01)
    limit = constant + linear * 500 + quadratic * 500 * 500
    assert largest_within(points, limit) == pytest.approx(500, rel=0.1)


def test_what_the_points_do_not_tell() -> None:
    assert fit({}) is None and fit({4.0: 100.0}) is None
    assert largest_within({4.0: 100.0, 8.0: 100.0}, 200) is None, "nothing grows"
    assert largest_within({0.0: 300.0, 8.0: 400.0}, 200) is None, "the model alone is too much"
    assert largest_within({4.0: 200.0, 8.0: 100.0}, 400) is None, "memory that falls is noise"


def test_the_largest_that_fits_in_few_attempts() -> None:
    def need(x: float) -> float:
        return 93000 + 150 * x

    value, attempts = found(Search(1, 2000, 1, loaded_mib=93000), need)
    assert value == 32
    assert attempts <= 5
    _, blind = found(Search(1, 2000, 1), need, telemetry=False)
    assert blind > attempts


def test_a_ready_that_was_noticed_too_late_does_not_mislead() -> None:
    def need(x: float) -> float:
        return 61000 + 500 * x

    value, attempts = found(Search(1, 500, 1, loaded_mib=61500), need)
    assert value == 73
    assert attempts <= 8 < found(Search(1, 500, 1), need, telemetry=False)[1]


def test_steps_and_bounds() -> None:
    assert found(Search(512, 40000, 512), lambda x: 5.0 * x)[0] == 19456
    assert found(Search(1, 8, 1), lambda x: x)[0] == 8, "all fit"
    assert found(Search(4, 8, 1), lambda _: 1e9) == (None, 1), "nothing fits"
    assert found(Search(0.5, 0.95, 0.01), lambda x: x * 110000)[0] == pytest.approx(0.88)


def test_near_enough_ends_it() -> None:
    exact, many = found(Search(1, 4096, 1), lambda x: 40 * x, telemetry=False)
    near, few = found(Search(1, 4096, 1, within=0.1), lambda x: 40 * x, telemetry=False)
    assert exact is not None and near is not None
    assert exact >= near >= exact * 0.9 and few < many


def test_what_the_ledger_knows_is_not_tried_again() -> None:
    known = Search(1, 2000, 1, fitted={31: 97650}, failed=[32, 2000], total_mib=TOTAL)
    assert known.next_value() is None and known.good == 31
    unlucky = replace(known, failed=[8, 33])
    assert (unlucky.bad, unlucky.next_value()) == (33, 32), "a failure below what fitted does not count"


@st.composite
def shapes(draw: st.DrawFn) -> Callable[[float], float]:
    constant, linear, quadratic = draw(st.floats(0, 90000)), draw(st.floats(0.01, 2000)), draw(st.floats(0, 50))
    return lambda x: constant + linear * x + quadratic * x * x


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 100), st.integers(1, 5000), st.integers(1, 64), shapes(), st.sampled_from([None, 1.0, 0.9]))
def test_it_ends_with_the_largest(
    low: int, more: int, step: int, need: Callable[[float], float], seen: float | None
) -> None:
    def told(x: float) -> float:
        return need(x) if seen is None or need(x) > TOTAL else need(x) * seen

    value, _ = found(Search(low, low + more, step), told, telemetry=seen is not None)
    steps = {x for x in range(low, low + more + 1) if x % step == 0} | {low, low + more}
    assert value == max((x for x in steps if need(x) <= TOTAL), default=None)
