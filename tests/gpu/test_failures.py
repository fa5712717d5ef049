"""Failures provoked on a real GPU: each ends in its class, with the right action, and the evidence is quoted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.wire.runspec import OnOom, Relaunches, RunSpec, Stop
from tests.gpu import scripts
from tests.parts.node import TestNode
from tests.waiting import wait_until


def job(
    real: TestNode, script: str, *, launcher: str = "", words: str = "", run: str = "job-1", **keys: Any
) -> RunSpec:
    path = real.folder / "job.py"
    path.write_text(script)
    start = launcher or sys.executable
    return real.job(f"{start} {path} {words}".strip(), run, gpus=1, **{"stop": Stop("TERM", 2), **keys})


def incident(real: TestNode) -> dict[str, Any]:
    found = [event for event in real.events(type="incident") if event["fatal"]]
    assert found, (real.log(), real.events())
    print(json.dumps({key: found[0][key] for key in ("class", "gpu", "requested_bytes", "advice")}, indent=1))
    print(found[0]["evidence"][0]["text"] if found[0]["evidence"] else "no evidence")
    return found[0]


@pytest.mark.parametrize(
    ("script", "expected", "said"),
    [
        (scripts.ASSERT, "device_assert", "index out of bounds"),
        (scripts.JAX, "gpu_oom", "out of memory"),
        (scripts.CUPY, "gpu_oom", "out of memory"),
        (scripts.BAD_WRITE, "cuda_illegal_access", "xid"),
    ],
    ids=["assert", "jax", "cupy", "bad-write"],
)
def test_what_ends_by_itself(real: TestNode, script: str, expected: str, said: str) -> None:
    real.start(job(real, script, env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}))
    assert real.wait_over(within_s=120).state == "failed"
    found = incident(real)
    assert found["class"] == expected
    assert any(said in evidence["text"].lower() for evidence in found["evidence"])


def test_one_rank_of_two(real: TestNode) -> None:
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2"
    real.start(job(real, scripts.RANKS, launcher=torchrun))
    assert real.wait_over(within_s=120).state == "failed"
    found = incident(real)
    assert found["class"] == "gpu_oom"
    assert found["evidence"][0]["rank"] == 1


def test_a_thread_dies_while_the_process_lives(real: TestNode) -> None:
    on_oom = OnOom(reduce=["share"], factor=0.5)
    real.start(job(real, scripts.THREAD, words="{share}", params={"share": 0.4}, on_oom=on_oom))
    assert real.wait_over(within_s=150).state == "succeeded"
    found = incident(real)
    assert found["class"] == "gpu_oom"
    assert found["evidence"][0]["thread"] == "drafter-0"
    assert [event["params"]["share"] for event in real.events(type="attempt_started")] == [0.4, 0.2]


def test_another_processes_memory_is_waited_for_and_nothing_shrinks(real: TestNode) -> None:
    gate = real.folder / "gate"
    on_oom = OnOom(reduce=["size"], factor=0.5)
    real.start(
        job(real, scripts.NEEDS_MOST, words=f"{gate} {{size}}", params={"size": 8}, on_oom=on_oom, on_busy_wait_s=120)
    )
    wait_until(lambda: real.life().attempt and "step 1/2" in real.log(), within_s=60)
    neighbour = subprocess.Popen([sys.executable, "-c", scripts.NEIGHBOUR], stdout=subprocess.PIPE, text=True)
    try:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "up\n"
        gate.touch()
        wait_until(lambda: real.events(type="waiting"), within_s=60)
        failed = incident(real)
        assert failed["class"].startswith("gpu_oom")
        assert failed["evidence"][0]["others"]
    finally:
        neighbour.kill()
        neighbour.wait()
    assert real.wait_over(within_s=60).state == "succeeded"
    assert {event["params"]["size"] for event in real.events(type="attempt_started")} == {8}


def test_fragments_call_for_the_allocators_setting_first(real: TestNode) -> None:
    on_oom = OnOom(reduce=["size"], factor=0.5)
    real.start(job(real, scripts.FRAGMENTS, words="{size}", params={"size": 8}, on_oom=on_oom))
    life = real.wait_over(within_s=120)
    assert incident(real)["class"] == "gpu_oom_fragmentation"
    relaunched = real.events(type="relaunching")[0]
    assert "expandable_segments:True" in json.dumps(relaunched["env"])
    assert relaunched["params"] == {"size": 8}
    assert life.state == "succeeded"


def watched(spec: RunSpec, **watch: Any) -> RunSpec:
    return RunSpec.from_json({**spec.to_json(), "watch": {"progress": r"step (?P<done>\d+)/(?P<total>\d+)", **watch}})


def test_a_spinning_kernel_is_a_stall(real: TestNode) -> None:
    real.start(watched(job(real, scripts.SPIN), stall={"for_s": 15, "action": "kill"}))
    assert real.wait_over(within_s=150).state == "failed"
    assert incident(real)["class"] == "stalled"


def test_an_input_bound_loop_draws_little_power_and_goes_on(real: TestNode) -> None:
    real.start(watched(job(real, scripts.INPUT_BOUND), low_power={"below": 0.5, "for_s": 15, "action": "alert"}))
    assert real.wait_over(within_s=150).state == "succeeded"
    classes = [event["class"] for event in real.events(type="incident")]
    assert classes == ["low_power"]


def test_a_killed_worker_is_not_the_gpus_fault(real: TestNode) -> None:
    on_oom = OnOom(reduce=["size"], factor=0.5)
    real.start(job(real, scripts.WORKER, words="{size}", params={"size": 8}, on_oom=on_oom))
    assert real.wait_over(within_s=120).state == "failed"
    assert not incident(real)["class"].startswith("gpu_oom")
    assert len(real.events(type="attempt_started")) == 1


@pytest.mark.skipif(len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2, reason="needs two GPUs")
def test_a_hung_collective_is_found_and_launched_again(real: TestNode) -> None:
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2"
    spec = replace(job(real, scripts.HUNG, launcher=torchrun, on_failure=Relaunches(1, 0.0)), gpus=2)
    real.start(watched(spec, stall={"for_s": 20, "action": "relaunch"}))
    assert real.wait_over(within_s=200).state == "succeeded"
    found = incident(real)
    assert (found["class"], found["gpu"]) == ("stalled", 1), found
    print(json.dumps(found["evidence"], indent=1))
    assert len(real.events(type="attempt_started")) == 2
