"""How fast logs are read: ordinary training logs of 256 MB on one core, beside `grep -E` for some of the same words."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuctl.watchdog.explain import explain

SIZE = 256 << 20
PIECE = 1 << 20
WORDS = "out of memory|Error|Traceback|failed|Killed|Xid|NCCL"


def measure() -> Iterator[tuple[str, str]]:
    for name, line in {
        "a line a step": "2026-01-02 10:11:12 | step {n}/100000 | loss 2.{n} | lr 3.0e-04 | 31.0k tok/s/gpu\n",
        "a progress bar": "\r {n}/90000 [00:11<1:22:11, 18.2it/s, loss=2.{n}]",
        "Megatron": " iteration {n}/ 500000 | lm loss: 3.1E+00 | loss scale: 1.0 | number of nan iterations: 0 |\n",
    }.items():
        block = "".join(line.format(n=n) for n in range(12_000)).encode()
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            log.write_bytes(block * (SIZE // len(block)))
            size = log.stat().st_size / 1e6
            ours, grep = _explained(log), _grepped(log)
        yield f"reading, {name}", f"{size / ours:.0f} MB/s (grep -E: {size / grep:.0f} MB/s)"


def _explained(log: Path) -> float:
    started = time.process_time()
    with log.open("rb") as file:
        explain(iter(lambda: file.read(PIECE), b""))
    return time.process_time() - started


def _grepped(log: Path) -> float:
    started = time.perf_counter()
    subprocess.run(["grep", "-E", "-c", WORDS, str(log)], check=False, capture_output=True)
    return time.perf_counter() - started
