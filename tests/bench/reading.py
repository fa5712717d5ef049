"""How fast logs are read, on one core: ordinary training logs, beside `grep -E` for the same stems in the same run; and
whether it stays as fast for a gigabyte and for one line of 10 MB."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuctl.watchdog.explain import explain
from gpuctl.watchdog.signatures import STEMS

MB = 10**6
SIZE = 256 * MB
PIECE = 1 << 20
STEP = "2026-01-02 10:11:12 | step {n}/100000 | loss 2.{n} | lr 3.0e-04 | 31.0k tok/s/gpu\n"
LOGS = {
    "a line a step": STEP,
    "a progress bar": "\r {n}/90000 [00:11<1:22:11, 18.2it/s, loss=2.{n}]",
    "Megatron": " iteration {n}/ 500000 | lm loss: 3.1E+00 | loss scale: 1.0 | number of nan iterations: 0 |\n",
    "all letters": "INFO key {n}: five boxes of wax quickly jogged, max 0x{n}, very verbose, packed by key=value\n",
}


def measure() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for name, line in LOGS.items():
            size = _write(log, line, SIZE)
            ours, grep = _explained(log), _grepped(log)
            yield f"reading, {name}", f"{size / ours:.0f} MB/s (grep -E -i: {size / grep:.0f} MB/s)"
        for megabytes in (64, 256, 1024):
            size = _write(log, STEP, megabytes * MB)
            yield f"reading, {megabytes} MB", f"{_explained(log):.2f} s"
        for megabytes in (1, 10):
            log.write_bytes(b"step 1/9 " + b"x=0.1, " * (megabytes * MB // 7) + b"\n")
            yield f"reading, one line of {megabytes} MB", f"{_explained(log) * 1000:.0f} ms"


def _write(log: Path, line: str, size: int) -> float:
    """Writes about so much of it; answers how much, in MB."""
    block = "".join(line.format(n=n) for n in range(12_000)).encode()
    with log.open("wb") as file:
        for _ in range(max(1, size // len(block))):
            file.write(block)
    return log.stat().st_size / MB


def _explained(log: Path) -> float:
    """Seconds of CPU."""
    started = time.process_time()
    with log.open("rb") as file:
        explain(iter(lambda: file.read(PIECE), b""))
    return time.process_time() - started


def _grepped(log: Path) -> float:
    """Seconds of CPU, in the locale in which grep is fastest."""
    words = "|".join(stem.decode() for stem in STEMS)
    before = os.times()
    command = ["grep", "-E", "-i", "-c", "-a", words, str(log)]
    subprocess.run(command, check=False, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
