"""Which attempts are known to fit: those that did their work, not those that got past a bar."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpuctl.watchdog.moments import Moment, thinned, worked_s
from gpuctl.wire.runspec import Watch
from tests.parts.node import TestNode
from tests.waiting import wait_until

JOB = """
import os, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
from gpuctl.simulation.cuda import Gpu
gpu = Gpu(0)
print("Preparing data: 100%|##########| 5/5 [00:00<00:00, 9.1it/s]", flush=True)
gpu.allocate("model", 2000 << 20)
gpu.load(float(sys.argv[1]))
print("loaded", flush=True)
while not os.path.exists("gate"):
    time.sleep(0.02)
sys.exit("RuntimeError: it went wrong")
"""


@pytest.mark.parametrize(
    ("power", "watch", "type", "fitted"),
    [
        ("0.17", Watch(), "task", False),
        ("0.17", Watch(progress="step (?P<done>[0-9]+)"), "task", False),
        ("0.7", Watch(), "task", True),
        ("0.17", Watch(progress="Preparing data.* (?P<done>[0-9]+)/"), "task", True),
        ("0.17", Watch(ready="loaded"), "task", True),
        ("0.17", Watch(ready="never"), "task", False),
        ("0.17", Watch(ready="loaded"), "service", True),
        ("0.17", Watch(ready="never"), "service", False),
    ],
)
def test_a_bar_alone_is_no_work(sim: TestNode, power: str, watch: Watch, type: str, fitted: bool) -> None:
    (sim.folder / "job.py").write_text(JOB)
    sim.start(sim.job(f"{sys.executable} job.py {power}", gpus=1, watch=watch, type=type))
    moments = sim.state_dir / "runs/job-1/attempts/1/samples.jsonl"
    wait_until(lambda: "loaded" in sim.log() if sim.events(type="attempt_started") else None)
    before = len(moments.read_text().splitlines()) if moments.exists() else 0
    wait_until(lambda: moments.exists() and len(moments.read_text().splitlines()) >= before + 5)
    (sim.folder / "gate").touch()
    sim.wait_over()
    (entry,) = wait_until(lambda: sim.call("ledger")[0]["entries"])
    assert entry["fitted"] is fitted


def test_at_work_by_power_or_where_it_can_not_be_read_by_utilisation() -> None:
    def moment(at: float, *reading: float | None, **some: Any) -> Moment:
        return Moment(at, gpus={"0": [0, 120, 9000, 700, 60], "1": list(reading)}, **some)

    spinning, working = moment(5.0, 100, 120, 9000, 700, 60), moment(6.0, 90, 400, 9000, 700, 60)
    assert worked_s([spinning, Moment(5.5), Moment(5.6, error="…")], since=0.0) == 0.0
    assert worked_s([spinning, working], since=0.0) == 1.0
    assert worked_s([working], since=6.0) == 0.0
    assert worked_s([moment(6.0, 90, None, 9000, None, None), moment(7.0, 90)], since=0.0) == 2.0
    assert worked_s(thinned([moment(float(at), 90, 400, 1, 700, 60) for at in range(60)], now=9000.0), 0.0) >= 50.0
