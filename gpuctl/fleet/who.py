"""Who asks, from where: what a run's `by` says."""

from __future__ import annotations

import getpass
import os
import socket


def whoami() -> str:
    """`user@host` of this controller."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a passwd entry
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
