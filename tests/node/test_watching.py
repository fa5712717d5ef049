"""What the supervisor sees of a living attempt, on its own processes and simulated GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.wire.runspec import Finding, Relaunches, RunSpec, Stop, Watch
from tests.parts.node import TestNode, node
from tests.waiting import wait_until

PROGRESS = r"step (?P<done>\d+)/(?P<total>\d+)"
QUIET = """
import os, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
from gpuctl.simulation.cuda import Gpu
gpu = Gpu(0)
gpu.load(0.8)
for step in range(1, 30):
    print(f"step {step}/60", flush=True)
    time.sleep(0.1)
gpu.load(0.17)
gate, busy = sys.argv[1:]
while not os.path.exists(gate):
    if busy == "io":
        with open("/dev/zero", "rb") as zeros:
            zeros.read(1 << 20)
    time.sleep(0.05)
gpu.load(0.8)
for step in range(30, 61):
    print(f"step {step}/60", flush=True)
    time.sleep(0.2)
"""
STALL = Watch(progress=PROGRESS, stall=Finding(3.0))


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[TestNode]:
    with node(tmp_path) as made:
        yield made


def job(sim: TestNode, watch: Watch, *, busy: str = "no", **keys: Any) -> RunSpec:
    script = sim.folder / "job.py"
    script.write_text(QUIET)
    command = f"{sys.executable} {script} {sim.folder}/gate {busy}"
    return replace(sim.job(command, gpus=1, stop=Stop("TERM", 2)), watch=watch, **keys)


def test_a_stall_is_told_once_and_taken_back(sim: TestNode) -> None:
    sim.start(job(sim, STALL))
    (incident,) = wait_until(lambda: sim.events(type="incident"), within_s=40)
    assert (incident["class"], incident["fatal"]) == ("stalled", False)
    row = sim.ps()["job-1"]
    assert (row["state"], row["incident"]["class"]) == ("running", "stalled")
    (sim.folder / "gate").touch()
    assert sim.wait_over().state == "succeeded"
    (recovered,) = sim.events(type="recovered")
    assert recovered["class"] == "stalled"
    assert sim.life().incident is None
    assert len(sim.events(type="incident")) == 1


def test_who_reads_is_alive(sim: TestNode) -> None:
    sim.start(job(sim, STALL, busy="io"))
    wait_until(lambda: sim.life().attempt and "step 29/" in sim.log(), within_s=40)
    last = sim.events(type="progress")[-1]["mono_s"]
    wait_until(lambda: last + 12 < float(Path("/proc/uptime").read_text().split()[0]), within_s=40)
    assert sim.events(type="incident") == []
    (sim.folder / "gate").touch()
    assert sim.wait_over().state == "succeeded"


def test_a_stalled_run_that_is_not_to_be_relaunched_fails(sim: TestNode) -> None:
    sim.start(job(sim, replace(STALL, stall=Finding(3.0, "kill"))))
    life = sim.wait_over(within_s=60)
    assert life.state == "failed"
    assert life.incident is not None and life.incident["class"] == "stalled"
    assert (sim.state_dir / "runs/job-1/attempts/1/stacks.txt").exists()


def test_policy_relaunches_a_stall_within_its_budget(sim: TestNode) -> None:
    sim.start(job(sim, STALL, policy={"stalled": Relaunches(1, 0.0)}))
    assert sim.wait_over(within_s=90).state == "failed"
    assert [event["class"] for event in sim.events(type="incident")] == ["stalled", "stalled"]
    assert len(sim.events(type="attempt_started")) == 2
