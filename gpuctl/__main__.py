"""`python -m gpuctl` and the `gpuctl` command."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from gpuctl.cli.program import run  # here: Ctrl-C while it loads is to be answered too
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before anything was done\n")
        return 130
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
