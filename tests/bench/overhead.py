"""What watching costs: CPU and memory of all of gpuctl's processes for one run at 1 Hz, real GPUs where there are some,
else 8 simulated ones; beside it, a bare pynvml loop and `nvidia-smi -l 1` where they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.parts.node import TestNode, node

SETTLE_S = 15.0
MEASURE_S = 30.0
TICKS = os.sysconf("SC_CLK_TCK")
LOOP = """
import time, pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
while True:
    for h in handles:
        n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2); n.nvmlDeviceGetUtilizationRates(h)
        n.nvmlDeviceGetPowerUsage(h); n.nvmlDeviceGetComputeRunningProcesses(h)
    time.sleep(1)
"""


def measure() -> Iterator[tuple[str, str]]:
    real = Path("/dev/nvidiactl").exists()
    with tempfile.TemporaryDirectory() as folder, node(Path(folder), gpus=8, **_real(real)) as made:
        for rate, what in ((0, "a silent job"), (10, "a job that prints 10 lines/s")):
            run = f"bench-{rate}"
            pause = f"sleep {1 / rate}" if rate else "sleep 3600"
            command = f"sh -c 'i=0; while :; do i=$((i+1)); echo step $i/100000 loss 1.0; {pause}; done'"
            made.start(made.job(command, run, gpus="all"))
            made.wait_state("loading", "running", run=run)
            pids = {verb: [process.pid for process in made.processes(verb)] for verb in ("supervise", "keep", "sample")}
            devices = len(made.call("gpus")[-1]["devices"])
            yield f"{what}, {devices} {'real' if real else 'simulated'} GPUs", ""
            yield from _report(pids)
            made.ask(run, "kill")
    if real:
        for argv in ([sys.executable, "-c", LOOP], ["nvidia-smi", "-l", "1"]):
            if shutil.which(argv[0]):
                with _started(argv) as pid:
                    yield from _report({" ".join(argv)[:40].replace("\n", " "): [pid]})


def _real(real: bool) -> dict[str, object]:
    return {"simulate": None} if real else {}


def _report(pids: dict[str, list[int]]) -> Iterator[tuple[str, str]]:
    every = [pid for group in pids.values() for pid in group]
    time.sleep(SETTLE_S)
    before = {pid: _cpu_s(pid) for pid in every}
    time.sleep(MEASURE_S)
    total_cpu = total_pss = 0.0
    for name, group in pids.items():
        cpu = sum(_cpu_s(pid) - before[pid] for pid in group) / MEASURE_S * 100
        pss = sum(_pss_mib(pid) for pid in group)
        total_cpu, total_pss = total_cpu + cpu, total_pss + pss
        yield f"  {name}", f"{cpu:.3f} % of a core, {pss:.1f} MiB Pss"
    yield "  together", f"{total_cpu:.3f} % of a core, {total_pss:.1f} MiB Pss"


def _cpu_s(pid: int) -> float:
    """User and system time; by the scheduler's own count, since ticks of 10 ms miss what is shorter."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def _pss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no Pss of {pid}")


@contextmanager
def _started(argv: list[str]) -> Iterator[int]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


__all__ = ["TestNode", "measure"]
