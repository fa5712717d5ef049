"""`wait_until`: the only way in which a test waits. It polls, and on failure shows the last value seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(probe: Callable[[], T], *, within_s: float = 20.0, every_s: float = 0.02, what: str = "") -> T:
    """What `probe` returns, as soon as that is truthy."""
    deadline = time.monotonic() + within_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or probe!r} did not come true within {within_s} s; last value: {value!r}")
        time.sleep(every_s)
