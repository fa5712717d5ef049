"""`clean`: orphans of ended runs go, live runs and strangers stay, and the verdict says what is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.node.clean import Cleaner
from gpuctl.node.folders import StateFolder, try_lock
from gpuctl.node.gpus import device_rows, gpus
from gpuctl.node.journal import Journal
from gpuctl.node.leases import Lease
from gpuctl.node.processes import ProcessId, alive
from gpuctl.node.refusal import Refusal
from gpuctl.node.telemetry import Telemetry
from gpuctl.simulation.devices import SimulatedGpus
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.replies import CleanReport
from gpuctl.wire.runspec import RunSpec
from tests.parts.gpus import holding, workload_environment
from tests.reaper.parts import Kept, kept
from tests.waiting import wait_until

HOLD = [sys.executable, "-m", "gpuctl.simulation.hold"]


@contextmanager
def run_with_job(
    node: NodeSpec, simulated: SimulatedGpus, run: str, *, gpu: int = 0, ended: bool = True, bare: bool = False
) -> Iterator[Kept]:
    """A run in the state folder, as its journal tells it, whose job still holds 600 MiB."""
    state = StateFolder(node)
    env = workload_environment(simulated.folder, visible=str(gpu))
    argv = [*HOLD, "--mib", "600"]
    if bare:
        words = [f"{name}={env[name]}" for name in ("PYTHONPATH", "GPUCTL_SIMULATION", "CUDA_VISIBLE_DEVICES", "PATH")]
        argv = ["env", "-i", *words, *argv]
    before = simulated.used_mib(gpu)
    with kept(argv, Path(state.path), run=run, env=env) as job:
        wait_until(lambda: simulated.used_mib(gpu) == before + 600)
        folder, _ = state.create_run(RunSpec(run, "job", node.name, "command"), lambda folder: None)
        journal = Journal(folder.journal)
        journal.append("run_created", by="me", gpus=[gpu])
        journal.append(
            "attempt_started", 1, pid=job.job.pid, pid_start=job.job.start, keeper=job.keeper.pid,
            keeper_start=job.keeper.start, gpus=[gpu],
        )  # fmt: skip
        if ended:
            journal.append("run_finished", state="failed", why="a test")
        yield job


def clean(
    node: NodeSpec, telemetry: Telemetry, *, gpus: list[int] | None = None, dry_run: bool = False, force: bool = False
) -> CleanReport:
    return Cleaner(node, telemetry, gpus).clean(dry_run=dry_run, force=force)


def test_nothing_to_clean(node: NodeSpec, telemetry: Telemetry) -> None:
    report = clean(node, telemetry)
    assert report.empty and not report.killed and not report.spared and report.memory_mib == {"0": 0, "1": 0}


@pytest.mark.parametrize("bare", [False, True], ids=["marked", "env -i"])
def test_an_orphan_of_an_ended_run_goes(
    node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus, bare: bool
) -> None:
    with run_with_job(node, simulated, "train-a1", bare=bare) as job:
        planned = clean(node, telemetry, dry_run=True)
        assert planned.dry_run and planned.empty is False and alive(job.job)
        assert [(one.pid, one.ours) for one in planned.killed] == [(job.job.pid, "train-a1")]
        report = clean(node, telemetry)
        assert report.empty and [(one.pid, one.ours) for one in report.killed] == [(job.job.pid, "train-a1")]
        assert report.killed[0].used_mib == 600 and not report.spared
        assert not alive(job.job)


def test_a_live_run_is_never_touched(node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus) -> None:
    with run_with_job(node, simulated, "train-a1", ended=False) as job:
        report = clean(node, telemetry, force=True)
        assert alive(job.job) and not report.killed
        assert (report.empty, report.failure) == (False, "foreign_holder")
        assert report.why is not None and "run train-a1" in report.why
        assert "gpuctl kill train-a1" in report.spared[0]["why"]


def test_a_run_that_someone_supervises_is_live_whatever_its_journal_says(
    node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus
) -> None:
    """A person has asked for a relaunch, and its supervisor has just begun."""
    with run_with_job(node, simulated, "train-a1") as job:
        lock = try_lock(StateFolder(node).run("train-a1").lock)
        assert lock is not None
        try:
            assert not clean(node, telemetry).killed and alive(job.job)
        finally:
            os.close(lock)


def test_only_the_chosen_gpus(node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus) -> None:
    with run_with_job(node, simulated, "a-1", gpu=0) as first, run_with_job(node, simulated, "b-2", gpu=1) as second:
        report = clean(node, telemetry, gpus=[1])
        assert report.empty and [one.pid for one in report.killed] == [second.job.pid] and alive(first.job)
        assert report.memory_mib == {"1": 0}
        assert clean(replace(node, gpus=[1]), telemetry).memory_mib == {"1": 0}
        with pytest.raises(Refusal, match="has no GPU 7"):
            clean(node, telemetry, gpus=[7])


def test_orphans_of_a_removed_run_go(node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus) -> None:
    with kept([*HOLD, "--mib", "600"], Path(StateFolder(node).path), env=workload_environment(simulated.folder)) as job:
        wait_until(lambda: simulated.used_mib(1) == 600)
        assert clean(node, telemetry).empty and not alive(job.job)


def test_strangers_stay_unless_forced(node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus) -> None:
    with holding(simulated.folder, options=["--mib", "300"]) as stranger:
        report = clean(node, telemetry)
        assert stranger.poll() is None and not report.killed and report.failure == "foreign_holder"
        assert report.spared[0]["pid"] == stranger.pid and "--force" in report.spared[0]["why"]
        assert clean(node, telemetry, force=True, dry_run=True).killed[0].pid == stranger.pid
        assert stranger.poll() is None
        assert clean(node, telemetry, gpus=[1], force=True).empty and stranger.poll() is None
        forced = clean(node, telemetry, force=True)
        assert forced.empty and [one.pid for one in forced.killed] == [stranger.pid] and stranger.wait() == -15


def test_only_what_a_person_agreed_to_is_ended(node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus) -> None:
    with run_with_job(node, simulated, "a-1") as seen, holding(simulated.folder, options=["--mib", "300"]) as shown:
        planned = clean(node, telemetry, force=True, dry_run=True)
        agreed = {ProcessId(one.pid, one.start) for one in planned.killed}
        assert {one.pid for one in agreed} == {seen.job.pid, shown.pid}
        with run_with_job(node, simulated, "b-2") as unseen, holding(simulated.folder, options=["--mib", "1"]) as late:
            report = Cleaner(node, telemetry, None).clean(dry_run=False, force=True, only=agreed)
            assert {one.pid for one in report.killed} == {one.pid for one in agreed}
            assert alive(unseen.job) and late.poll() is None and report.empty is False
            assert Cleaner(node, telemetry, None).clean(dry_run=False, force=True, only=[]).killed == []
            assert alive(unseen.job) and late.poll() is None


@pytest.mark.parametrize("who", ["protected", "reader", "another user", "another folder's run"])
def test_whom_force_never_ends(
    node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if who == "another folder's run":
        monkeypatch.setenv("GPUCTL_RUN", "theirs-1")
    if who == "another user":
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
    if who == "protected":
        node = replace(node, protect=[Path(sys.executable).resolve().name])
    with holding(simulated.folder, options=["--mib", "0" if who == "reader" else "300"]) as stranger:
        report = clean(node, telemetry, force=True)
        assert stranger.poll() is None and not report.killed
        why = {one["pid"]: one["why"] for one in report.spared}[stranger.pid]
        said = {"reader": "no memory", "another folder's run": "the run theirs-1"}.get(who, who)
        assert said in why


def test_gpus_shows_users_and_leases(node: NodeSpec, telemetry: Telemetry, simulated: SimulatedGpus) -> None:
    held = {simulated.uuid(0): [Lease("train-a1", [simulated.uuid(0)], {}, "", 0.0, user="alice")]}
    with run_with_job(node, simulated, "train-a1", ended=False) as job, holding(simulated.folder, visible="1") as other:
        first, second = device_rows(node, telemetry.sample().devices, held, telemetry.pid)
        assert (first.leases, first.lease_users, second.leases) == (["train-a1"], ["alice"], [])
        assert [(one.pid, one.ours, one.used_mib) for one in first.holders] == [(job.job.pid, "train-a1", 600)]
        assert [(one.pid, one.ours) for one in second.holders] == [(other.pid, None)]
    answer = gpus(replace(node, gpus=[1]), telemetry, held)
    assert [row["device"]["index"] for row in answer["devices"]] == [1] and answer["driver"] == "simulated"
    assert answer["error"] is None
