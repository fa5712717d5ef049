"""How soon the command line answers, against bare Python: medians of whole processes, taken in turn."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 15
INVENTORY = "nodes:\n  local: {{transport: local, state_dir: {0}/state, lock_dir: {0}/locks}}\n"


def measure() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        inventory = Path(folder) / "inventory.yaml"
        inventory.write_text(INVENTORY.format(folder))
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",
            "GPUCTL_HOME": f"{folder}/home",
            "GPUCTL_INVENTORY": str(inventory),
        }
        program = [sys.executable, "-m", "gpuctl"]
        commands = {
            "bare python": [sys.executable, "-c", "pass"],
            "gpuctl --version": [*program, "--version"],
            "gpuctl ps (a local node)": [*program, "ps"],
            "gpuctl --help": [*program, "--help"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for nth in range(ROUNDS + 1):
            for name, argv in commands.items():
                started = time.perf_counter()
                subprocess.run(argv, env=environment, check=True, capture_output=True)
                if nth:  # the first fills the caches
                    taken[name].append(time.perf_counter() - started)
        bare = statistics.median(taken["bare python"])
        for name, seconds in taken.items():
            median = statistics.median(seconds)
            over = (median - bare) * 1000
            spread = f"{min(seconds) * 1000:.0f}–{max(seconds) * 1000:.0f}"
            yield name, f"{median * 1000:.0f} ms ({over:+.0f} ms over bare Python; {spread})"
