"""`python -m gpuctl` and the `gpuctl` command."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _nothing_begun(_signal: int, _frame: FrameType | None) -> None:
    """Ctrl-C while the program loads. A KeyboardInterrupt raised in the midst of imports could not be answered: where
    it passes through `exec`, as dataclasses use it, Python ends by the signal, whoever catches it."""
    os.write(2, b"interrupted: nothing was started\n")
    os._exit(130)


def main() -> int:
    signal.signal(signal.SIGINT, _nothing_begun)  # until `options.performed`, where commands begin to act
    from gpuctl.cli.program import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
