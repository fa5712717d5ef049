"""Xids of a real driver: they wait until they are asked for, name their GPU, and explain an end without a word."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from gpuctl.node.kernel import KernelLog, XidReport
from gpuctl.node.nvml import Nvml
from gpuctl.wire.samples import Xid
from tests.gpu import scripts
from tests.parts.node import TestNode
from tests.waiting import wait_until

SILENT = f"""
import os
try:
    exec({scripts.BAD_WRITE!r})
except Exception:
    os._exit(1)
"""
"""A program that swallows what CUDA tells it."""


def test_the_driver_keeps_them_until_they_are_asked_for() -> None:
    nvml, log = Nvml(), KernelLog()
    assert nvml.devices() and nvml.xids() == []
    done = subprocess.run([sys.executable, "-c", SILENT], check=False)
    assert done.returncode == 1
    assert wait_until(nvml.xids) == [Xid(31, 0)]  # the program is gone: this is what the driver kept
    began = time.perf_counter()
    assert nvml.xids() == []
    print(f"reading none took {1e3 * (time.perf_counter() - began):.3f} ms")
    told = [report for report in log.read() if isinstance(report, XidReport)]
    print(f"the kernel's log is {'readable' if log.readable else 'closed'}: {told}")
    assert not log.readable or [report.number for report in told] == [31]


def test_a_bad_write_that_nobody_tells_of(real: TestNode) -> None:
    (real.folder / "job.py").write_text(SILENT)
    real.start(real.job(f"{sys.executable} job.py", gpus=1))
    assert real.wait_over(within_s=120).state == "failed"
    (incident,) = [event for event in real.events(type="incident") if event["fatal"]]
    print(json.dumps([real.events(type="xid"), incident], indent=1))
    assert (incident["class"], incident["gpu"]) == ("cuda_illegal_access", 0)
    assert {(event["xid"], event["gpu"]) for event in real.events(type="xid")} == {(31, 0)}


def test_a_kill_in_a_running_kernel_is_no_fault_of_the_gpu(real: TestNode) -> None:
    (real.folder / "job.py").write_text(
        "import torch\nprint('step 1/2', flush=True)\n[torch.cuda._sleep(10**9) for _ in range(600)]\n"
        "torch.cuda.synchronize()\n"
    )
    real.start(real.job(f"{sys.executable} job.py", gpus=1))
    real.wait_state("running", within_s=60)
    (job,) = real.jobs_of()
    subprocess.run(["kill", "-9", str(job.pid)], check=True)
    real.wait_over(within_s=60)
    (incident,) = [event for event in real.events(type="incident") if event["fatal"]]
    print(json.dumps(incident, indent=1))
    assert incident["class"] == "unknown"
    assert real.events(type="xid") == []
