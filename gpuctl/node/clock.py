"""The two clocks: wall time for people, CLOCK_BOOTTIME for every duration and deadline.

Boot time goes on while the machine sleeps and does not jump when someone sets the date: the only one to subtract.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone


def now() -> str:
    """Wall time: UTC, RFC 3339, milliseconds, `Z`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def boottime() -> float:
    """Seconds since the machine booted, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
