"""`observe: true`: everything is judged and journaled, nothing is done; and `policy`'s word for single classes."""

from __future__ import annotations

import sys

from gpuctl.node.processes import alive
from gpuctl.wire.runspec import OnOom, Outputs, Relaunches, Watch
from tests.parts.node import TestNode
from tests.waiting import wait_until

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of "
    "95.59 GiB of which 3.05 GiB is free."
)
HOLD = f"{sys.executable} -m gpuctl.simulation.hold"


def test_what_would_be_done_is_said_and_nothing_is_done(sim: TestNode) -> None:
    script = f'mkdir -p out; {HOLD} --mib 1000 --seconds 60 & echo "{OOM}"; sleep 0.5; exit 1'
    (sim.folder / "job.sh").write_text(script)
    sim.start(
        sim.job(
            "sh job.sh {bs}", gpus=1, params={"bs": 64}, on_oom=OnOom(reduce=["bs"]), observe=True,
            outputs=Outputs(["out"], "archive"),
        )
    )  # fmt: skip
    life = sim.wait_over()
    assert life.state == "failed"
    assert "bs=32" in (life.why or "")
    types = [event["type"] for event in sim.events()]
    assert types.count("attempt_started") == 1
    assert not {"killed", "relaunching", "gpus_empty"} & set(types)
    assert "not_empty" in types, "it says that something of it still holds memory"
    assert (sim.folder / "out").exists()
    assert sim.call("gpus")[-1]["devices"][0]["device"]["memory_used_mib"] == 1000


def test_a_timeout_is_told_once_and_a_person_may_end_it(sim: TestNode) -> None:
    sim.start(sim.job("sleep 600", gpus=0, timeout_s=0.2, observe=True))
    wait_until(lambda: sim.events(type="note"))
    job = sim.jobs_of()[0]
    assert "timeout" in sim.events(type="note")[0]["text"]
    sim.kill_9("supervise")
    wait_until(lambda: sim.events(type="supervisor_started"))
    assert alive(job)
    sim.ask("job-1", "kill")
    assert sim.life().state == "killed"
    assert not alive(job)


def test_an_alert_lets_it_live(sim: TestNode) -> None:
    spec = sim.job("sh -c 'sleep 1; echo step 1/1'", gpus=0, timeout_s=0.3, policy={"timeout": "alert"}, watch=Watch())
    sim.start(spec)
    assert sim.wait_over().state == "succeeded"
    assert [event["class"] for event in sim.events(type="incident")] == ["timeout"]


def test_a_service_that_ends_has_failed(sim: TestNode) -> None:
    sim.start(sim.job("true", gpus=0, type="service", on_failure=Relaunches(1, 0.0)))
    life = sim.wait_over()
    assert (life.state, life.attempt) == ("failed", 2)
    assert "on_failure" in (life.why or "")
