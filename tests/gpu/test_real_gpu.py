"""The main job on a real GPU: a batch that can't fit, and nobody who watches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuctl.node.processes import alive
from gpuctl.wire.runspec import OnOom, Stop
from tests.parts.node import TestNode
from tests.waiting import wait_until

HERE = Path(__file__).parent
TRAIN = f"{sys.executable} {HERE / 'train.py'} --batch-size {{batch_size}} --steps 3"
SPIN = (
    f"{sys.executable} -c "
    "\"import torch; x = torch.empty(2**30, dtype=torch.uint8, device='cuda'); print('spinning', flush=True);"
    ' [torch.cuda._sleep(10**9) for _ in range(600)]; torch.cuda.synchronize()"'
)


def memory_used(real: TestNode, index: int = 0) -> int:
    device = real.call("gpus")[-1]["devices"][index]["device"]
    assert device["memory_used_mib"] is not None
    return int(device["memory_used_mib"])


def test_out_of_memory_gives_way_until_it_fits(real: TestNode) -> None:
    on_oom = OnOom(reduce=["batch_size"], factor=0.5, max_relaunches=8)
    real.start(real.job(TRAIN, gpus=1, params={"batch_size": 4000}, on_oom=on_oom))
    life = real.wait_over(within_s=240)
    print(json.dumps(real.events(), indent=1))
    assert life.state == "succeeded", real.log(attempt=life.attempt or 1)
    tried = [event["params"]["batch_size"] for event in real.events(type="attempt_started")]
    assert len(tried) > 1
    assert tried == sorted(tried, reverse=True)
    for incident in real.events(type="incident"):
        assert incident["class"] == "gpu_oom"
        assert incident["gpu"] == 0
        assert incident["requested_bytes"] > 0
        assert "out of memory" in incident["evidence"][0]["text"]
    assert memory_used(real) == 0
    for number, seconds in relaunch_seconds(real).items():
        print(f"attempt {number}: relaunched {seconds:.3f} s after the exit of the one before")
        assert seconds < 10  # the measurement itself is in tests/bench


def relaunch_seconds(real: TestNode, run: str = "job-1") -> dict[int, float]:
    """By attempt: from the exit of the one before (as its keeper saw it) to its own start."""
    started = {event["attempt"]: event["mono_s"] for event in real.events(run, "attempt_started")}
    exits = {
        number: json.loads((real.state_dir / "runs" / run / "attempts" / str(number) / "exit.json").read_text())
        for number in started
    }
    return {number: at - exits[number - 1]["ended_mono_s"] for number, at in started.items() if number > 1}


def test_a_kill_in_a_running_kernel_frees_the_gpu(real: TestNode) -> None:
    real.start(real.job(SPIN, gpus=1, stop=Stop("TERM", 1)))
    wait_until(lambda: real.life().attempt and "spinning" in real.log(), within_s=120)
    assert memory_used(real) > 1024
    job = real.jobs_of()[0]
    row = real.call("gpus")[-1]["devices"][0]
    assert job.pid in [holder["pid"] for holder in row["holders"]]
    assert row["leases"] == ["job-1"]
    real.ask("job-1", "kill")
    assert real.life().state == "killed"
    assert not alive(job)
    empty = real.events(type="gpus_empty")[-1]
    print(f"empty {empty['after_s']} s after the last kill", empty)
    assert memory_used(real) == 0


def test_a_run_waits_for_memory_that_is_not_its_own(real: TestNode) -> None:
    """A process of nobody's run holds memory: the launch is refused, with who holds it."""
    import subprocess

    held = "import torch, time; x = torch.empty(2**30, device='cuda'); print('up', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        refused = real.start(real.job("true", gpus=1))
        assert refused["error"]["code"] == 5
        assert str(other.pid) in refused["error"]["what"]
        report = real.call("clean", dry_run=False, force=False)[-1]["clean"]
        assert report["failure"] == "foreign_holder"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
