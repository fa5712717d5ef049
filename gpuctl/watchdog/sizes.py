"""Sizes as programs print them. Memory is counted in powers of two whatever the unit's spelling (Paddle, MPS and
TensorRT print "MB" and mean MiB)."""

from __future__ import annotations

import re
from typing import Optional

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
SIZE = r"(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)\s?([KMGTP]?)(?:i?B|bytes|byte)?\b"
"""A regular expression's source for a size: two groups, number and unit letter."""
_SIZE = re.compile(SIZE, re.IGNORECASE)


def size_bytes(number: str, unit: str) -> Optional[int]:
    """`("98.00", "M")` → 102760448. None for what is no size of memory: a negative one, or an unsigned underflow."""
    value = float(number.replace(",", ""))
    size = round(value * (1 << _UNITS[unit.upper()]))
    return size if 0 <= size < 1 << 53 else None


def parse_size(text: str) -> Optional[int]:
    """The first size in the text, None where there is none."""
    found = _SIZE.search(text)
    return size_bytes(found.group(1), found.group(2)) if found else None


def show_size(size: int) -> str:
    """For people: 896.0 MiB, 91.3 GiB, 512 bytes."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size} bytes"
