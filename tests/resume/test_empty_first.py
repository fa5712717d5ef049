"""Never a relaunch before "empty", whatever an attempt leaves behind and wherever its supervisor dies.

Hypothesis makes the plan of a run: how each attempt ends, what of it lives on and holds GPU memory, and at which point
the supervisor is killed. The journal of the real supervisor, and what each attempt saw of its GPU, are the proof.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpuctl.simulation.devices import FOLDER_VARIABLE
from gpuctl.wire.runspec import OnOom, Relaunches, Resume, Stop
from tests.parts.node import TestNode, node
from tests.waiting import wait_until

POINTS = ("exit-seen", "exit-journaled", "cleaned", "relaunch-journaled", "attempt-forked", "attempt-told")

JOB = """
import json, os, subprocess, sys, time
from gpuctl.simulation.devices import SimulatedGpus
number = int(os.environ["GPUCTL_ATTEMPT"])
gpus = SimulatedGpus(os.environ["GPUCTL_SIMULATION"])
print("found", gpus.capacity_mib - gpus.free_mib(0), "MiB in use", flush=True)
plan = json.load(open("plan.json"))
step = plan[number - 1] if number <= len(plan) else {"end": "well", "left": ""}
if step["left"]:
    hold = [sys.executable, "-m", "gpuctl.simulation.hold", "--mib", "2000", "--seconds", "60", *step["left"].split()]
    child = subprocess.Popen(hold, stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
if step["end"] == "oom":
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s.00 GiB. GPU 0 has a total capacity of"
          " 95.59 GiB of which 3.05 GiB is free." % sys.argv[1], flush=True)
if step["end"] == "signal":
    os.kill(os.getpid(), 9)
sys.exit(0 if step["end"] == "well" else 1)
"""


@dataclass(frozen=True)
class Step:
    end: str  # oom | crash | signal
    left: str  # options of what lives on; "" for nothing
    fault: str  # where the supervisor dies; "" for nowhere


steps = st.builds(
    Step,
    end=st.sampled_from(["oom", "crash", "signal"]),
    left=st.sampled_from(["", "--fork", "--ignore-term", "--fork --ignore-term"]),
    fault=st.sampled_from(["", *POINTS]),
)


@settings(
    max_examples=4, deadline=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.lists(steps, min_size=1, max_size=3))
def test_no_attempt_begins_before_its_gpus_are_empty(tmp_path_factory: Any, plan: list[Step]) -> None:
    with node(tmp_path_factory.mktemp("run"), gpus=1) as sim:
        _run(sim, plan)
        _check(sim)


def test_who_comes_while_it_waits_for_a_checkpoint_is_waited_for(tmp_path: Path) -> None:
    """Whatever is waited for between two attempts, "empty" is verified after it."""
    script = """
import os, sys
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
from gpuctl.simulation.devices import SimulatedGpus
gpus = SimulatedGpus(os.environ["GPUCTL_SIMULATION"])
print("found", gpus.capacity_mib - gpus.free_mib(0), "MiB in use", sys.argv[1:], flush=True)
if len(sys.argv) == 1:
    open("1.pt", "w").write("weights")
    sys.exit(1)
"""
    with node(tmp_path, gpus=1) as sim:
        Path(sim.folder / "job.py").write_text(script)
        sim.start(
            sim.job(
                f"{sys.executable} job.py", gpus=1, resume=Resume("*.pt", "{latest}"),
                policy={"unknown": Relaunches(1, 0.0)},
            )
        )  # fmt: skip
        wait_until(lambda: sim.events(type="relaunching"))
        simulation = {FOLDER_VARIABLE: str(sim.state_dir / "simulated/sim"), "CUDA_VISIBLE_DEVICES": "0"}
        command = [sys.executable, "-m", "gpuctl.simulation.hold", "--mib", "3000"]
        with subprocess.Popen(command, env={**os.environ, **simulation}) as stranger:
            try:
                waiting = wait_until(lambda: sim.events(type="waiting"))
            finally:
                stranger.kill()
        assert str(stranger.pid) in waiting[0]["why"]
        assert sim.wait_over().state == "succeeded", sim.events()
        assert sim.log(attempt=2) == f"found 0 MiB in use ['{sim.folder}/1.pt']\n"


def _run(sim: TestNode, plan: list[Step]) -> None:
    Path(sim.folder / "job.py").write_text(JOB)
    Path(sim.folder / "plan.json").write_text(json.dumps([asdict(step) for step in plan]))
    for step in plan:
        if step.fault:
            sim.fault(step.fault)
    sim.start(
        sim.job(
            f"{sys.executable} job.py {{bs}}", gpus=1, params={"bs": 64}, stop=Stop("TERM", 0.2),
            on_oom=OnOom(reduce=["bs"]), policy={"unknown": Relaunches(6, 0.0), "code_error": Relaunches(6, 0.0)},
        )
    )  # fmt: skip
    life = sim.wait_over(within_s=90.0)
    assert life.state == "succeeded", (life.why, life.incident)


def _check(sim: TestNode) -> None:
    events = sim.events()
    starts = [index for index, event in enumerate(events) if event["type"] == "attempt_started"]
    for before, after in itertools.pairwise(starts):
        between = [event["type"] for event in events[before:after]]
        assert "gpus_empty" in between, between
        last = len(between) - between[::-1].index("gpus_empty")
        assert not {"killed", "not_empty", "cleaning", "attempt_exited"} & set(between[last:]), between
        assert between.count("relaunching") == 1, between
    for event in (events[index] for index in starts):
        assert event["gpus_were_empty"]
        assert sim.log(attempt=event["attempt"]).startswith("found 0 MiB in use"), event
    sizes = [event["params"]["bs"] for event in events if event["type"] == "attempt_started"]
    assert sizes == sorted(sizes, reverse=True)
