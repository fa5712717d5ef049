"""Where the controller keeps its own state."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """`$GPUCTL_HOME`, else the platform's user state folder."""
    chosen = os.environ.get("GPUCTL_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # here: 27 ms that a chosen folder does not need

    return platformdirs.user_state_path("gpuctl")
