"""What DESIGN promises of supervisor and keeper: no crash starts a job twice, loses an exit, or leaves a run without
anyone to watch it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gpuctl.node.processes import alive
from tests.parts.node import TestNode
from tests.waiting import wait_until

COUNTED = "sh -c 'echo started >> {count}; while [ ! -e {gate} ]; do sleep 0.05; done; exit 7'"


class Gated:
    """A job that counts its starts and ends with code 7 when its gate is opened."""

    def __init__(self, sim: TestNode) -> None:
        self.sim = sim
        self.count = sim.folder / "count"
        self.gate = sim.folder / "gate"
        self.spec = sim.job(COUNTED, params={"count": str(self.count), "gate": str(self.gate)}, gpus=1)

    @property
    def starts(self) -> int:
        return self.count.read_text().count("started") if self.count.exists() else 0

    def start(self) -> None:
        assert self.sim.start(self.spec)["run"]["run"] == "job-1"

    def running(self) -> None:
        wait_until(lambda: self.starts, what="the job's start")


@pytest.fixture
def gated(sim: TestNode) -> Gated:
    return Gated(sim)


def finished(sim: TestNode) -> dict[str, object]:
    sim.wait_over()
    return sim.events(type="attempt_exited")[-1]


def test_the_exit_is_recorded(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    gated.gate.touch()
    assert finished(sim)["exit_code"] == 7
    assert sim.life().state == "failed"
    assert (sim.state_dir / "runs/job-1/attempts/1/exit.json").exists()


def test_a_repeated_start_is_the_same_run(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    gated.start()
    assert len(sim.ps()) == 1
    gated.gate.touch()
    finished(sim)
    gated.start()  # also after its end
    assert gated.starts == 1


def test_a_killed_supervisor_is_followed_by_another(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    sim.kill_9("supervise")
    wait_until(lambda: sim.events(type="supervisor_started"), what="the next supervisor")
    gated.gate.touch()
    assert finished(sim)["exit_code"] == 7
    assert gated.starts == 1


def test_supervisors_that_die_again_and_again(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    for nth in range(1, 4):
        sim.kill_9("supervise")
        wait_until(lambda nth=nth: len(sim.events(type="supervisor_started")) >= nth, what="the next supervisor")
    gated.gate.touch()
    assert finished(sim)["exit_code"] == 7
    assert gated.starts == 1


def test_a_killed_keeper_loses_no_exit(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    sim.kill_9("keep")
    gated.gate.touch()
    assert finished(sim)["exit_code"] == 7
    assert gated.starts == 1


def test_an_exit_while_no_supervisor_lived_is_found(gated: Gated, sim: TestNode) -> None:
    sim.fault("exit-seen")
    gated.start()
    gated.running()
    gated.gate.touch()
    assert finished(sim)["exit_code"] == 7
    assert len(sim.events(type="attempt_exited")) == 1


def test_both_killed_the_exit_is_null_and_never_guessed(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    job = sim.jobs_of()[0]
    both = [*sim.processes("keep"), *sim.processes("supervise")]
    for process in both:
        os.kill(process.pid, signal.SIGSTOP)  # so that neither can start the other anew
    for process in both:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(process) for process in both))
    assert sim.ps()["job-1"]["state"] == "loading"  # the contact starts a supervisor, which finds the job alive
    wait_until(lambda: sim.events(type="supervisor_started"))
    gated.gate.touch()
    wait_until(lambda: not alive(job))
    exited = finished(sim)
    assert (exited["exit_code"], exited["signal"]) == (None, None)
    assert sim.life().state == "lost"
    assert gated.starts == 1


def test_all_three_gone_is_lost(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    all_three = [*sim.processes("keep"), *sim.processes("supervise"), *sim.jobs_of()]
    for process in all_three:
        os.kill(process.pid, signal.SIGSTOP)
    for process in all_three:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(process) for process in all_three))
    sim.ps()
    sim.wait_state("lost")
    assert gated.starts == 1


@pytest.mark.parametrize("point", ["attempt-forked", "attempt-journaled"])
def test_a_crash_around_the_fork_starts_no_job_twice(gated: Gated, sim: TestNode, point: str) -> None:
    sim.fault(point)
    gated.start()
    sim.ps()
    gated.gate.touch()
    sim.wait_over()
    assert gated.starts == 1  # it had not begun, whatever was journaled, so it was made anew
    started = sim.events(type="attempt_started")
    assert len({event["attempt"] for event in started}) == len(started)
    assert sim.events(type="attempt_exited")[-1]["exit_code"] == 7
    assert sim.life().state == "failed"


@pytest.mark.parametrize("point", ["attempt-told", "exit-seen", "exit-journaled", "cleaned", "finish"])
def test_a_crash_at_any_later_point_ends_the_same(gated: Gated, sim: TestNode, point: str) -> None:
    sim.fault(point)
    gated.start()
    gated.gate.touch()
    wait_until(lambda: not (sim.state_dir / "faults" / point).exists(), what=f"the fault at {point}")
    wait_until(lambda: sim.ps()["job-1"]["state"] == "failed", within_s=30)
    assert gated.starts == 1
    assert len(sim.events(type="run_finished")) == 1
    assert sim.events(type="attempt_exited")[-1]["exit_code"] == 7


def test_a_kill_that_was_accepted_is_carried_out_by_the_next_supervisor(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    sim.fault("exit-journaled")
    sim.ask("job-1", "kill", grace_s=1)
    assert sim.life().state == "killed"
    assert len(sim.events(type="request")) == 1


def test_a_supervisor_that_died_while_it_cleaned_up_is_followed_by_one_that_goes_on_cleaning(
    gated: Gated, sim: TestNode
) -> None:
    gated.start()
    gated.running()
    sim.kill_9("supervise")
    wait_until(lambda: sim.events(type="supervisor_started"))
    watching = sim.processes("supervise")[0]
    os.kill(watching.pid, signal.SIGSTOP)
    job = sim.jobs_of()[0]
    os.kill(job.pid, signal.SIGSTOP)  # frozen, as the reaper leaves it between its steps
    journal = sim.state_dir / "runs/job-1/journal.jsonl"
    last = sim.events()[-1]
    asked = {"request": "r1", "kind": "kill", "accepted": True, "by": "", "grace_s": 0.5}
    with journal.open("a") as file:
        for seq, event in enumerate(({"type": "request", **asked}, {"type": "cleaning", "gpus": [0]}), last["seq"] + 1):
            file.write(json.dumps({**last, "seq": seq, **event}) + "\n")
    os.kill(watching.pid, signal.SIGKILL)
    assert sim.wait_over().state == "killed"
    assert not alive(job)


def test_an_accepted_relaunch_of_an_ended_run_survives_its_supervisor(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.gate.touch()
    finished(sim)
    journal = sim.state_dir / "runs/job-1/journal.jsonl"
    last = sim.events()[-1]
    asked = {"type": "request", "request": "r1", "kind": "relaunch", "accepted": True, "by": "", "params": {}}
    fields = {key: last[key] for key in ("time", "mono_s", "attempt")}
    wait_until(lambda: not sim.processes("supervise"))
    with journal.open("a") as file:
        file.write(json.dumps({"seq": last["seq"] + 1, **fields, **asked}) + "\n")
    sim.ask("job-1", "kill", wait=False)  # any contact that starts a supervisor
    wait_until(lambda: gated.starts == 2)
    sim.wait_over()


def test_seq_has_no_gap_after_crashes(gated: Gated, sim: TestNode) -> None:
    sim.fault("exit-journaled")
    gated.start()
    gated.gate.touch()
    wait_until(lambda: sim.ps()["job-1"]["state"] == "failed", within_s=30)
    assert [event["seq"] for event in sim.events()] == list(range(1, len(sim.events()) + 1))


def test_a_restarted_machine_makes_it_lost(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    left = [*sim.processes("keep"), *sim.processes("supervise"), *sim.jobs_of()]
    for process in left:
        os.kill(process.pid, signal.SIGSTOP)
    for process in left:
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(process) for process in left))
    _of_another_boot(sim.state_dir / "runs/job-1/journal.jsonl")
    sim.ps()
    life = sim.wait_state("lost")
    assert life.why is not None
    assert "restarted" in life.why
    assert gated.starts == 1


def _of_another_boot(journal: Path) -> None:
    """Rewrites the machine that the journal names, as if it had been written before a restart."""
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    for event in events:
        if "machine" in event:
            event["machine"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_another_machines_run_is_shown_and_left_alone(gated: Gated, sim: TestNode) -> None:
    gated.start()
    gated.running()
    gated.gate.touch()
    finished(sim)
    journal = sim.state_dir / "runs/job-1/journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    events = [event for event in events if event["type"] in ("run_created", "attempt_started")]
    for event in events:
        event["machine"]["host"] = "elsewhere"
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    row = sim.ps()["job-1"]
    assert (row["state"], row["machine"]) == ("loading", "elsewhere")
    assert sim.life().state == "loading"
