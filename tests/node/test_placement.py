"""How a run comes to its GPUs again: after what was out of order for a moment, after a crash, after another run."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node.processes import alive, scan
from gpuctl.wire.runspec import Relaunches
from tests.parts.node import TestNode, node
from tests.waiting import wait_until


@contextmanager
def locked(sim: TestNode) -> Iterator[None]:
    lock = os.open(sim.spec.lock_dir, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield
    os.close(lock)


@contextmanager
def taken_name(sim: TestNode) -> Iterator[None]:
    """Where its lease is to be is a folder: like another account's file, it can't be written over."""
    lease = Path(sim.spec.lock_dir, f"job-1.{os.getuid()}.lease")
    wait_until(lambda: not lease.exists(), what="the end of its last lease")
    lease.mkdir()
    yield
    lease.rmdir()


@contextmanager
def no_devices(sim: TestNode) -> Iterator[None]:
    faults = sim.state_dir / "simulated/sim/faults.json"
    faults.write_text(json.dumps({"error": "NVML: Unknown Error"}))
    yield
    faults.unlink()


TROUBLES: list[tuple[Callable[[TestNode], AbstractContextManager[None]], str]] = [
    (locked, "has held the lock"),
    (taken_name, "can't write"),
    (no_devices, "Unknown Error"),
]


@pytest.mark.parametrize(("trouble", "why"), TROUBLES, ids=[trouble.__name__ for trouble, _ in TROUBLES])
def test_what_is_out_of_order_for_a_moment_is_waited_for(
    sim: TestNode, trouble: Callable[[TestNode], AbstractContextManager[None]], why: str
) -> None:
    sim.start(sim.job("sh -c 'exit 3'", gpus=1))
    sim.wait_over()
    with trouble(sim):
        asked = sim.popen("request", run="job-1", request={"id": "r1", "kind": "relaunch"}, wait=True)
        waiting = wait_until(lambda: sim.events(type="waiting"), what="its waiting")
        assert why in waiting[0]["why"]
        assert sim.life().state == "relaunching"
    asked.communicate(timeout=60)
    wait_until(lambda: sim.life().attempt == 2, what="the second attempt")
    assert sim.wait_over().state == "failed"
    assert sim.events(type="attempt_exited")[-1]["exit_code"] == 3
    assert len(sim.events(type="waiting")) == 1


def test_a_folder_of_leases_that_is_away_is_waited_for(sim: TestNode) -> None:
    gate = sim.folder / "gate"
    command = f"sh -c 'while [ ! -e {gate} ]; do sleep 0.05; done; exit 3'"
    sim.start(sim.job(command, gpus=1, on_failure=Relaunches(1, 0.1)))
    sim.wait_state("loading")
    away = f"{sim.spec.lock_dir}.away"
    os.rename(sim.spec.lock_dir, away)
    gate.touch()
    wait_until(lambda: any("No such file" in each["why"] for each in sim.events(type="waiting")), what="its waiting")
    os.rename(away, sim.spec.lock_dir)
    assert sim.wait_over().attempt == 2


def test_what_stays_out_of_order_blocks_it(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'exit 3'", gpus=1, on_busy_wait_s=0.2))
    sim.wait_over()
    with no_devices(sim):
        last = sim.ask("job-1", "relaunch")[-1]
        assert (last["type"], last["state"]) == ("run_finished", "blocked")
        assert "Unknown Error" in last["why"]


def test_a_kill_reaches_a_run_that_waits_so(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'exit 3'", gpus=1))
    sim.wait_over()
    with no_devices(sim):
        asked = sim.popen("request", run="job-1", request={"id": "r1", "kind": "relaunch"}, wait=True)
        wait_until(lambda: sim.events(type="waiting"), what="its waiting")
        assert "waited for its GPUs" in sim.ask("job-1", "kill")[-1]["why"]
        asked.communicate(timeout=60)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[TestNode]:
    with node(tmp_path, gpus=3) as made:
        yield made


def supervisors(sim: TestNode, run: str) -> list[int]:
    argv = str(sim.state_dir / "runs" / run)
    return [process.id.pid for process in scan() if process.alive and argv in process.argv]


def born_waiting(sim: TestNode, command: str, **keys: Any) -> None:
    """Starts a run that the launch leased nothing for. It got GPU 1, and GPU 0 is free now, too."""
    for run, gpus in (("zero-1", [0]), ("others-1", [1, 2])):
        sim.start(sim.job("sleep 60", run, gpus=gpus))
        sim.wait_state("loading", run=run)
    assert sim.start(sim.job(command, gpus=1, queue=True, **keys))["run"]["state"] == "queued"
    sim.ask("others-1", "kill")
    assert sim.wait_state("loading").gpus == [1]
    sim.ask("zero-1", "kill")


def test_a_run_that_was_queued_comes_back_to_its_gpu(three: TestNode) -> None:
    born_waiting(three, "sleep 60")
    three.ask("job-1", "kill")
    wait_until(lambda: not supervisors(three, "job-1"), what="its supervisor's end")
    three.ask("job-1", "relaunch")
    assert three.wait_state("loading").gpus == [1]


def test_a_crash_before_the_next_attempt_does_not_forget_its_gpu(three: TestNode) -> None:
    gate = three.folder / "gate"
    command = f"sh -c 'while [ ! -e {gate} ]; do sleep 0.05; done; exit 3'"
    born_waiting(three, command, on_failure=Relaunches(1, 0.1))
    three.fault("relaunch-journaled")
    gate.touch()
    three.wait_over()
    assert [event["gpus"] for event in three.events(type="attempt_started")] == [[1], [1]]
    assert three.events(type="supervisor_started")


def test_what_another_run_has_got_meanwhile_is_replaced(three: TestNode) -> None:
    three.start(three.job("sleep 60", gpus=1))
    assert three.wait_state("loading").gpus == [0]
    three.ask("job-1", "kill")
    three.start(three.job("sleep 60", "other-1", gpus=[0]))
    three.wait_state("loading", run="other-1")
    wait_until(lambda: not supervisors(three, "job-1"), what="its supervisor's end")
    three.ask("job-1", "relaunch")
    assert three.wait_state("loading").gpus == [1]


def test_the_run_that_another_follows_is_watched_over(sim: TestNode) -> None:
    """Nobody else asks this node for anything."""
    gate = sim.folder / "gate"
    sim.start(sim.job(f"sh -c 'while [ ! -e {gate} ]; do sleep 0.05; done'", "first-1", gpus=0))
    sim.wait_state("loading", run="first-1")
    sim.start(sim.job("true", "second-1", gpus=0, after="first-1"))
    wait_until(lambda: sim.events("second-1", "waiting"), what="its waiting")
    watching = supervisors(sim, "first-1")
    both = [*sim.processes("keep"), *[each for each in sim.processes("supervise") if each.pid in watching]]
    assert len(both) == 2
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in both:
            os.kill(process.pid, number)
    wait_until(lambda: not any(alive(process) for process in both))
    wait_until(lambda: sim.events("first-1", "supervisor_started"), what="its next supervisor", within_s=30)
    gate.touch()
    assert sim.wait_over("first-1").state == "lost"
    life = sim.wait_over("second-1")
    assert (life.state, "ended lost" in str(life.why)) == ("blocked", True)
