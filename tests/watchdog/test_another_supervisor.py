"""A supervisor that follows another reads the logs again: it knows what that one knew, but not when it was written."""

from __future__ import annotations

import pytest

from gpuctl.watchdog.judge import Judge
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.runspec import Finding, Watch
from gpuctl.wire.samples import Sample
from tests.watchdog.test_deaths import DEATHS, STATED
from tests.watchdog.test_vitals import CONTEXT, COPIES, LOW, MATMUL, PROGRESS, STALL, Life


def followed(life: Life, log: str) -> Life:
    """The same attempt's life under another judge, which knows what the first one told."""
    known = [incident for incident in life.incidents if not incident.fatal]
    life.judge = Judge(life.watch, type=life.type, started=0.0)
    life.judge.again = True
    life.judge.feed("log", log.encode(), life.at)
    life.judge.again = False
    life.judge.know(known)
    life.incidents = []
    return life


def _steps(count: int) -> str:
    return "".join(f"step {step}/900 loss 2.1\n" for step in range(1, count + 1))


@pytest.mark.parametrize("step_s", [30, 100, 300])
@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS.keys())
def test_a_slow_jobs_pace_is_known_from_its_count(step_s: int, death: str) -> None:
    log = _steps(20) + death
    life = Life(STATED).go(20 * step_s, MATMUL, step_s=step_s)
    followed(life, log).go(step_s * 2, CONTEXT, step_s=step_s)
    assert [incident.cls for incident in life.incidents if incident.fatal] == []


def test_a_slow_job_does_not_stall_under_another() -> None:
    life = followed(Life(STALL).go(3000, MATMUL, step_s=300), _steps(10))
    assert life.go(800, CONTEXT).classes == []
    assert life.go(300, CONTEXT).classes == ["stalled"]


def test_ready_within_goes_on() -> None:
    watch = Watch(ready="model is up", ready_within_s=300.0)
    assert followed(Life(watch).go(200, CONTEXT), "loading\n").go(101, CONTEXT).classes == ["timeout"]


@pytest.mark.parametrize("cls", ["stalled", "low_power", "nan_loss", "thread_died", "rank", "driver_hung", "xid_hw"])
def test_a_finding_is_not_told_again(cls: str) -> None:
    life, log = _with_finding(cls)
    life = followed(life, log)
    _go_on(life, cls)
    assert life.classes == []


def _with_finding(cls: str) -> tuple[Life, str]:
    log = _steps(60)
    if cls == "stalled":
        return Life(Watch(progress=PROGRESS, stall=Finding(60.0))).go(120, MATMUL, step_s=2).go(200, CONTEXT), log
    if cls == "low_power":
        return Life(LOW).go(200, COPIES, step_s=2), log
    life = Life(Watch(progress=PROGRESS)).go(120, MATMUL, step_s=2)
    said = {
        "nan_loss": "".join(f"step {step}/900 loss nan\n" for step in range(61, 66)),
        "thread_died": DEATHS["thread"] + "".join(f"step {step}/900 loss 2\n" for step in range(61, 99)),
        "rank": DEATHS["rank"],
    }.get(cls, "")
    if said:
        life.say(said.rstrip())
    _go_on(life, cls)
    assert len(life.incidents) == 1, life.incidents
    return life, log + said


def _go_on(life: Life, cls: str) -> None:
    for _ in range(150):
        if cls == "driver_hung":
            life.judge.sample(Sample("", life.at, error="driver_hung: the driver has not answered for 5 s"))
            life.say("x").go(1)
        elif cls in ("stalled", "low_power"):
            life.go(1, CONTEXT if cls == "stalled" else COPIES)
        else:
            if cls == "xid_hw":
                life.judge.fact(Evidence("xid_hw", "Xid 79 on GPU 3", source="nvml", gpu=3))
            life.go(1, MATMUL)


def test_what_is_over_since_is_said_to_be() -> None:
    life = followed(*_with_finding("stalled")).go(20, CONTEXT)
    assert life.recovered == []
    assert [one.cls for one in life.go(30, MATMUL).recovered] == ["stalled"]


def test_a_finding_that_was_known_may_still_become_certain() -> None:
    judge = Judge(STATED, started=0.0)
    judge.know([Incident("thread_died", False, evidence=[Evidence("thread_died", "", thread="drafter-0")])])
    life = Life(STATED)
    life.judge = judge
    life.go(120, MATMUL, step_s=2).say(DEATHS["thread"].rstrip()).go(200, CONTEXT)
    assert [incident.fatal for incident in life.incidents] == [True]
