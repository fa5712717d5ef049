"""The promise "empty" on simulated GPUs: when it comes true, and how its failures are named."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.node import emptiness
from gpuctl.node.emptiness import Emptiness, wait_empty
from gpuctl.node.holders import patterns
from gpuctl.node.processes import alive, scan
from gpuctl.node.proof import Proof
from gpuctl.node.telemetry import Telemetry
from gpuctl.simulation.devices import SimulatedGpus
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import DeviceSample, Sample
from tests.parts.gpus import SAMPLER, holding, workload_environment
from tests.reaper.parts import RUN, Kept, kept, started
from tests.waiting import wait_until

HOLD = [sys.executable, "-m", "gpuctl.simulation.hold"]


def wait(
    telemetry: Telemetry,
    node: NodeSpec,
    proof: Proof | None = None,
    *,
    deadline_s: float = 2.0,
    share: bool = False,
    only: int | None = None,
) -> Emptiness:
    devices = [one for one in telemetry.sample().devices if only in (None, one.index)]
    return wait_empty(telemetry, node, devices, proof, deadline_s=deadline_s, pause=time.sleep, share=share)


def holding_job(simulated: SimulatedGpus, *options: str) -> tuple[list[str], dict[str, str]]:
    return [*HOLD, *options], workload_environment(simulated.folder, visible="0")


def holds(telemetry: Telemetry, simulated: SimulatedGpus, mib: int, index: int = 0) -> None:
    uuid = simulated.uuid(index)
    wait_until(lambda: telemetry.memory([uuid])[uuid] == mib)


def test_empty_gpus_are_empty_at_once(telemetry: Telemetry, node: NodeSpec) -> None:
    found = wait(telemetry, node)
    assert found.empty and found.failure is None and found.after_s < 1 and not found.spared
    assert found.memory_mib == {"0": 0, "1": 0} and not found.ghost_utilisation


def test_waits_until_the_memory_is_free(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus, tmp_path: Path
) -> None:
    argv, env = holding_job(simulated, "--mib", "500", "--seconds", "1.5")
    with kept(argv, tmp_path, env=env) as job:
        holds(telemetry, simulated, 500)
        found = wait(telemetry, node, job.proof(), deadline_s=20)
        assert found.empty and 0 < found.after_s < 10 and not alive(job.job)


def test_a_foreign_holder_is_named_without_waiting_for_the_deadline(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus
) -> None:
    with holding(simulated.folder, options=["--mib", "5000"]) as process:
        found = wait(telemetry, node, deadline_s=30)
        assert not found.empty and found.failure == "foreign_holder" and found.after_s < 10
        assert found.why is not None and f"pid {process.pid}" in found.why and "GPU 0 5000 MiB" in found.why
        assert [(one.pid, one.gpus, one.used_mib) for one in found.holders] == [(process.pid, [0], 5000)]
        assert found.memory_mib == {"0": 5000, "1": 0}


def test_memory_on_another_gpu_blocks_nothing(telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus) -> None:
    with holding(simulated.folder, visible="1", options=["--mib", "5000"]) as process:
        found = wait(telemetry, node, only=0)
        assert found.empty
        assert [(one["pid"], one["why"]) for one in found.spared] == [
            (process.pid, "has device files open, but no memory on these GPUs")
        ]


def test_who_only_reads_is_spared(telemetry: Telemetry, node: NodeSpec, reader: int) -> None:
    found = wait(telemetry, node)
    assert found.empty and [one["pid"] for one in found.spared] == [reader]


def test_a_living_process_of_ours_is_waited_for_then_called_unkillable(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus, tmp_path: Path
) -> None:
    argv, env = holding_job(simulated, "--mib", "700")
    with kept(argv, tmp_path, env=env) as job:
        holds(telemetry, simulated, 700)
        found = wait(telemetry, node, job.proof(), deadline_s=0.6)
        assert (found.empty, found.failure) == (False, "unkillable")
        assert [one.pid for one in found.holders] == [job.job.pid] and found.holders[0].ours == RUN
        os.kill(job.job.pid, signal.SIGKILL)
        assert wait(telemetry, node, job.proof()).empty


def orphan_of_a_dead_parent(telemetry: Telemetry, simulated: SimulatedGpus, job: Kept) -> int:
    """Kills the process that made the context; a forked child keeps its memory."""
    holds(telemetry, simulated, 900)
    child = wait_until(lambda: [one for one in job.living() if one.ppid == job.job.pid])[0]
    os.kill(job.job.pid, signal.SIGKILL)
    wait_until(lambda: not alive(job.job))
    return child.id.pid


def test_memory_under_a_dead_pid_is_sought_among_ours(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus, tmp_path: Path
) -> None:
    argv, env = holding_job(simulated, "--mib", "900", "--fork")
    with kept(argv, tmp_path, env=env) as job:
        proof = job.proof()
        child = orphan_of_a_dead_parent(telemetry, simulated, job)
        found = wait(telemetry, node, proof, deadline_s=0.6)
        assert found.failure == "unkillable" and [one.pid for one in found.holders] == [child]


def test_memory_under_a_dead_pid_that_is_not_ours_names_who_may_hold_it(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus, tmp_path: Path
) -> None:
    argv, env = holding_job(simulated, "--mib", "900", "--fork")
    with kept(argv, tmp_path, env=env) as job:
        child = orphan_of_a_dead_parent(telemetry, simulated, job)
        found = wait(telemetry, node, None, deadline_s=0.6)
        assert found.failure == "foreign_holder" and [one.pid for one in found.holders] == [child]
        assert found.why is not None and str(job.job.pid) in found.why and f"run {RUN}" in found.why


def test_memory_that_nobody_visible_holds(telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus) -> None:
    Path(simulated.path("faults.json")).write_text(json.dumps({"outside_mib": {"1": 1234}}))
    holds(telemetry, simulated, 1234, index=1)
    found = wait(telemetry, node, deadline_s=0.6)
    assert (found.empty, found.failure, found.holders) == (False, "held_outside", [])
    assert found.why is not None and "GPU 1 1234 MiB" in found.why


@pytest.fixture
def reader(simulated: SimulatedGpus, hostile: str) -> Iterator[int]:
    """A process that has a device file open and no memory, as an NVML reader."""
    with started([hostile, "stay", simulated.path("dev", "nvidiactl")]) as process:
        wait_until(lambda: [one for one in scan() if one.id.pid == process.pid and one.comm == "h-stay"])
        yield process.pid


@pytest.mark.parametrize(("contained", "failure"), [(True, "held_outside"), (False, "foreign_holder")])
@pytest.mark.usefixtures("reader")
def test_in_a_container_a_reader_is_not_accused(
    node: NodeSpec, simulated: SimulatedGpus, monkeypatch: pytest.MonkeyPatch, contained: bool, failure: str
) -> None:
    namespace = "pid:[1]" if contained else emptiness.INITIAL_PID_NAMESPACE
    monkeypatch.setattr(emptiness, "namespace", lambda _: namespace)
    Path(simulated.path("faults.json")).write_text(json.dumps({"outside_mib": {"1": 1234}}))
    with Telemetry(node, SAMPLER) as telemetry:
        found = wait(telemetry, node, deadline_s=0.6)
    assert found.failure == failure and found.why is not None
    assert ("outside this container" in found.why) == contained


def test_no_reading_is_not_empty(telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus) -> None:
    devices = telemetry.sample().devices
    Path(simulated.path("faults.json")).write_text(json.dumps({"error": "Driver/library version mismatch"}))
    wait_until(lambda: telemetry.sample().error)
    found = wait_empty(telemetry, node, devices, None, deadline_s=0.6, pause=time.sleep)
    assert (found.empty, found.failure) == (False, "unreadable")
    assert found.why is not None and "GPU 0, 1" in found.why


def test_what_a_protected_process_holds_is_the_baseline(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus
) -> None:
    with holding(simulated.folder, options=["--mib", "40"]) as process:
        mine = replace(node, protect=[Path(sys.executable).resolve().name])
        found = wait(telemetry, mine)
        assert found.empty and [(one["pid"], one["why"]) for one in found.spared] == [(process.pid, "is protected")]
        assert wait(telemetry, replace(node, idle_mib=40)).empty
        assert not wait(telemetry, replace(node, idle_mib=39), deadline_s=0.6).empty


def test_shared_gpus_need_only_be_rid_of_ours(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus, tmp_path: Path
) -> None:
    argv, env = holding_job(simulated, "--mib", "700")
    with holding(simulated.folder, options=["--mib", "300"]) as other, kept(argv, tmp_path, env=env) as job:
        holds(telemetry, simulated, 1000)
        assert wait(telemetry, node, job.proof(), share=True, deadline_s=0.6).failure == "unkillable"
        os.kill(job.job.pid, signal.SIGKILL)
        found = wait(telemetry, node, job.proof(), share=True)
        assert found.empty and "shares" in str(found.spared[0]["why"]) and found.spared[0]["pid"] == other.pid


def test_utilisation_is_waited_for_a_second_then_noted(
    telemetry: Telemetry, node: NodeSpec, simulated: SimulatedGpus
) -> None:
    with holding(simulated.folder, options=["--mib", "0", "--utilisation", "100"]):
        began = time.monotonic()
        found = wait(telemetry, node)
        assert found.empty and found.ghost_utilisation and found.after_s < 1
        assert 1.0 <= time.monotonic() - began < 5


class NeverSays:
    """Readings of a GPU that has no memory of its own to count."""

    error = None
    pid = None

    def __init__(self, device: DeviceSample) -> None:
        self.device = device

    def sample(self) -> Sample:
        return Sample("", 0.0, [self.device])

    def memory(self, uuids: object) -> dict[str, int | None]:
        return {self.device.uuid: None}


@pytest.mark.parametrize(("processes", "empty"), [([], True), (None, False)])
def test_a_gpu_that_never_says_how_much(node: NodeSpec, processes: list[object] | None, empty: bool) -> None:
    device = DeviceSample(0, "GPU-x", processes=processes)  # type: ignore[arg-type]
    found = wait_empty(NeverSays(device), node, [device], None, deadline_s=0.2, pause=time.sleep)
    assert found.empty == empty and found.failure == (None if empty else "unreadable")


def test_patterns_of_a_simulated_node_lie_in_its_folder(node: NodeSpec, simulated: SimulatedGpus) -> None:
    assert patterns(node) == [f"{simulated.folder}/dev/nvidia*"]
    assert patterns(replace(node, simulate=None, devices=["/dev/x*"])) == ["/dev/x*"]
