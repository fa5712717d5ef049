"""What an attempt shows about its values where it was not alone on its GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuctl.node.company import Company
from gpuctl.simulation.devices import FOLDER_VARIABLE
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.runspec import OnOom, RunSpec
from gpuctl.wire.samples import DeviceProcess, DeviceSample
from tests.parts.node import TestNode
from tests.waiting import wait_until

GIB = 1 << 30
GONE = 4_194_300  # no process has this pid
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 95.59 GiB"
    " of which 3.05 GiB is free."
)
TRAIN = f"""
import os, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
from gpuctl.simulation.cuda import Gpu
gpu = Gpu(0)
gpu.allocate("model", 2000 << 20)
print("step 1/2", flush=True)
while not os.path.exists("gate"):
    time.sleep(0.02)
if os.environ["GPUCTL_ATTEMPT"] == "1":
    sys.exit({OOM!r})
print("step 2/2", flush=True)
"""


@contextmanager
def sleeper(**environment: str) -> Iterator[int]:
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, **environment})
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def seen(company: Company, *pids: int, mib: int | None = 500) -> Company:
    company.see([DeviceSample(0, "GPU-0", processes=[DeviceProcess(pid, mib) for pid in pids])])
    return company


def test_who_is_of_the_attempt_and_who_is_not() -> None:
    with sleeper() as below, sleeper(GPUCTL_RUN="job-1") as marked:
        rooted = Company("job-2", [os.getpid()])
        assert seen(rooted, below, marked).alone, "both come from its root"
        company = Company("job-1")
        assert seen(company, marked, GONE).alone, "a pid that nobody has is nobody's"
        assert seen(company, marked, below, mib=None).strangers == [below]
        assert seen(company, below).strangers == [below], "the attempt's own are gone already"
        assert seen(company, marked).strangers == []
        assert not company.alone, "all the time"
        assert seen(Company("job-1", idle_mib=500), marked, below).alone


def test_pids_of_another_namespace_say_nothing() -> None:
    with sleeper() as other:
        assert seen(Company("job-1"), other).alone


def test_its_own_ranks_in_a_message_are_not_others() -> None:
    with sleeper(GPUCTL_RUN="job-1") as rank:
        company = seen(Company("job-1"), rank)
    others = [{"pid": rank, "bytes": 90 * GIB}]
    told = Incident("gpu_oom", True, evidence=[Evidence("gpu_oom", "", in_use_bytes=GIB, others=others)])
    assert company.about(told).evidence[0].others == [{**others[0], "ours": 1}]
    assert Company("job-9").about(told) == told


@pytest.fixture
def training(sim: TestNode) -> Iterator[RunSpec]:
    (sim.folder / "train.py").write_text(TRAIN)
    yield sim.job(f"{sys.executable} train.py {{bs}}", gpus=[0], params={"bs": 64}, on_oom=OnOom(reduce=["bs"]))


@contextmanager
def stranger(sim: TestNode) -> Iterator[None]:
    """Holds memory on GPU 0, and is no run."""
    environment = {**os.environ, FOLDER_VARIABLE: str(sim.state_dir / "simulated/sim"), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "gpuctl.simulation.hold", "--mib", "3000"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield
        finally:
            child.kill()


def entries(sim: TestNode) -> list[dict[str, Any]]:
    return list(sim.call("ledger")[0]["entries"])


def seen_by_sampler(sim: TestNode) -> None:
    """Two samples were taken since now."""
    path = sim.state_dir / "runs/job-1/attempts/1/samples.jsonl"
    before = len(path.read_text().splitlines())
    wait_until(lambda: len(path.read_text().splitlines()) >= before + 3)


def test_who_came_meanwhile_is_to_blame_not_the_values(sim: TestNode, training: RunSpec) -> None:
    sim.start(training)
    wait_until(lambda: sim.events(type="progress"))
    with stranger(sim):
        seen_by_sampler(sim)
        (sim.folder / "gate").touch()
        wait_until(lambda: sim.events(type="relaunching"))
        (incident,) = sim.events(type="incident")
        assert len(incident["strangers"]) == 1
        assert entries(sim) == []
    assert sim.wait_over().state == "succeeded"
    assert [event["params"] for event in sim.events(type="attempt_started")] == [{"bs": 64}] * 2
    (entry,) = entries(sim)
    assert (entry["attempt"], entry["fitted"]) == (2, True)


def test_a_run_that_shares_shows_what_fitted_and_no_more(sim: TestNode, training: RunSpec) -> None:
    sim.start(RunSpec.from_json({**training.to_json(), "share": True}))
    wait_until(lambda: sim.events(type="progress"))
    (sim.folder / "gate").touch()
    assert sim.wait_over().state == "succeeded"
    (entry,) = entries(sim)
    assert (entry["attempt"], entry["fitted"], entry["peak_mib"], entry["loaded_mib"]) == (2, True, None, None)
