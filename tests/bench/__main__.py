"""`python -m tests.bench [NAME…]`: runs measurements and prints their figures as a table. Not part of the tests."""

from __future__ import annotations

import importlib
import sys

NAMES = ("startup", "overhead", "relaunch", "reading", "ladder")


def main(names: list[str]) -> None:
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        for what, value in importlib.import_module(f"tests.bench.{name}").measure():
            print(f"{what:<70} {value}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
