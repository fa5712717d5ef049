"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.spec import durations


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("12h", 43200), ("30s", 30), ("15m", 900), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172800), ("1.5h", 5400),
     ("250ms", 0.25), ("90", 90), ("0", 0), (" 5s ", 5), (90, 90), (0.5, 0.5), (0, 0)],
)  # fmt: skip
def test_they_are_seconds(written: str | float, seconds: float) -> None:
    assert durations.seconds(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "h", "5 parsecs", "1:30:00", "-5s", "5s!", "s5", -1, float("nan"), float("inf"), True]
)
def test_what_is_none_says_what_was_expected(written: str | float) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 30s, 15m, 1h30m or 2d"):
        durations.seconds(written)


@given(st.integers(0, 10**9) | st.floats(0, 1e9))
def test_text_reads_back_exactly(duration_s: float) -> None:
    assert durations.seconds(durations.text(float(duration_s))) == duration_s


def test_text_is_the_short_form() -> None:
    assert durations.text(5400.0) == "1h30m"
    assert durations.text(0.0) == "0s"
