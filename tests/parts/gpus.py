"""Simulated GPUs and processes that hold them, for tests of any area."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuctl.simulation.devices import FOLDER_VARIABLE
from gpuctl.wire.nodespec import NodeSpec, Simulate

REPOSITORY = Path(__file__).resolve().parents[2]

SAMPLER = [sys.executable, "-c", "import sys; from gpuctl.node.sampler import main; sys.exit(main())"]
"""How to start a sampler outside a bundle, from the repository's root."""


def simulated_node(folder: Path, *, gpus: int = 2, memory_mib: int = 97887, name: str = "sim") -> NodeSpec:
    return NodeSpec(
        name=name,
        state_dir=str(folder / "state"),
        lock_dir=str(folder / "locks"),
        simulate=Simulate(gpus=gpus, memory_mib=memory_mib, power_limit_w=600, folder=str(folder / "gpus")),
    )


def workload_environment(folder: str, *, visible: str | None = None) -> dict[str, str]:
    environ = {**os.environ, FOLDER_VARIABLE: folder, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ if visible is None else {**environ, "CUDA_VISIBLE_DEVICES": visible}


@contextmanager
def holding(folder: str, *, visible: str = "0", options: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A `hold` workload, holding already; it is gone at the end."""
    argv = [sys.executable, "-m", "gpuctl.simulation.hold", *options]
    process = subprocess.Popen(
        argv,
        env=workload_environment(folder, visible=visible),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("holding "), line
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
