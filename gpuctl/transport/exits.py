"""Exit codes as a shell gives them, whatever the library calls them: 128 + n where signal n ended a process."""

from __future__ import annotations

import signal


def shell_exit_code(returncode: int) -> int:
    """From subprocess's, which is -n where signal n ended a process."""
    return 128 - returncode if returncode < 0 else returncode


def of_signal(name: str) -> int:
    """From SSH's, which names the signal without SIG; 255 for one that this machine does not have."""
    number = getattr(signal, f"SIG{name.partition('@')[0]}", None)
    return 128 + int(number) if isinstance(number, signal.Signals) else 255
