"""`python -m gpuctl` and the `gpuctl` command."""

from __future__ import annotations

import sys


def main() -> int:
    from gpuctl.cli.program import run  # here, so that importing this module costs nothing

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
