"""Durations as people write them: `12h`, `1h30m`, `30s`, `1.5d`; a bare number is seconds."""

from __future__ import annotations

import math
import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PATTERN = r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*)+$"
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")

EXPECTED = "expected a duration such as 30s, 15m, 1h30m or 2d (a number is seconds)"


def seconds(value: str | int | float) -> float:
    """`value` in seconds. Raises `ValueError`, which says what was expected."""
    if isinstance(value, str):
        return _parsed(value.strip())
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{EXPECTED}, got {value!r}")
    return float(value)


def _parsed(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    total, position = 0.0, 0
    while part := _PART.match(text, position):
        total += float(part[1]) * UNITS[part[2]]
        position = part.end()
    if not text or position != len(text):
        raise ValueError(f"{EXPECTED}, got {text!r}")
    return total


def text(duration_s: float) -> str | float:
    """The shortest way to write it that `seconds` reads back exactly: 5400.0 → `1h30m`."""
    if duration_s != int(duration_s):
        return duration_s
    rest, parts = int(duration_s), []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(UNITS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
