"""The supervisor's end of the sampler: real processes, deadlines, and what is left when the driver is silent."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.clock import boottime
from gpuctl.node.telemetry import Telemetry
from gpuctl.simulation.devices import SimulatedGpus, resolved
from gpuctl.wire.nodespec import NodeSpec
from tests.parts.gpus import SAMPLER, holding, simulated_node
from tests.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> NodeSpec:
    return resolved(simulated_node(tmp_path))


@pytest.fixture
def gpus(node: NodeSpec) -> SimulatedGpus:
    assert node.simulate is not None and node.simulate.folder is not None
    return SimulatedGpus(node.simulate.folder)


@pytest.fixture
def telemetry(node: NodeSpec) -> Iterator[Telemetry]:
    with Telemetry(node, SAMPLER, init_deadline_s=20, answer_deadline_s=0.5) as telemetry:
        yield telemetry


def set_faults(gpus: SimulatedGpus, **faults: object) -> None:
    """Whole or not at all: the sampler reads it at any moment."""
    aside = Path(gpus.path("faults.new"))
    aside.write_text(json.dumps(faults))
    aside.rename(gpus.path("faults.json"))


def test_sample_names_every_gpu(telemetry: Telemetry, gpus: SimulatedGpus) -> None:
    sample = telemetry.sample()
    assert sample.error is None and sample.driver == "simulated"
    assert [(device.index, device.uuid) for device in sample.devices] == [(0, gpus.uuid(0)), (1, gpus.uuid(1))]
    assert [device.memory_used_mib for device in sample.devices] == [0, 0]
    assert sample.devices[0].memory_total_mib == 97887
    assert sample.mono_s > 0 and sample.time.endswith("Z")


def test_memory_follows_a_holder(telemetry: Telemetry, gpus: SimulatedGpus) -> None:
    first, second = gpus.uuid(0), gpus.uuid(1)
    with holding(gpus.folder, visible="1", options=["--mib", "5000"]) as process:
        assert telemetry.memory([first, second]) == {first: 0, second: 5000}
        processes = telemetry.sample().devices[1].processes
        assert processes is not None and [(p.pid, p.used_mib) for p in processes] == [(process.pid, 5000)]
    assert telemetry.memory([second]) == {second: 0}


def test_unknown_uuid_is_absent_not_zero(telemetry: Telemetry) -> None:
    assert telemetry.memory(["GPU-none"]) == {"GPU-none": None}


def test_one_sampler_answers_everything(telemetry: Telemetry) -> None:
    assert telemetry.pid is None  # nothing is started before the first question
    telemetry.sample()
    first = telemetry.pid
    telemetry.sample()
    telemetry.memory([])
    assert telemetry.pid == first is not None


def test_sampler_carries_no_marker_and_has_its_own_session(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_RUN", "somebody-abc123")
    telemetry.sample()
    pid = telemetry.pid
    assert pid is not None
    assert b"GPUCTL_" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert os.getsid(pid) == pid


def test_close_ends_the_sampler(telemetry: Telemetry) -> None:
    telemetry.sample()
    pid = telemetry.pid
    telemetry.close()
    assert telemetry.pid is None and not Path(f"/proc/{pid}").exists()


def test_no_driver_says_so(telemetry: Telemetry, gpus: SimulatedGpus) -> None:
    set_faults(gpus, error="Driver Not Loaded")
    sample = telemetry.sample()
    assert (sample.devices, sample.error, telemetry.hung) == ([], "Driver Not Loaded", False)
    assert telemetry.memory([gpus.uuid(0)]) == {gpus.uuid(0): None}
    set_faults(gpus)
    assert len(telemetry.sample().devices) == 2


def test_lost_gpu_leaves_the_others(telemetry: Telemetry, gpus: SimulatedGpus) -> None:
    set_faults(gpus, lost=[1])
    first, second = telemetry.sample().devices
    assert first.error is None and first.memory_used_mib == 0
    assert second.error == "GPU is lost" and second.memory_used_mib is None and second.power_w is None


def test_nobody_waits_for_a_driver_that_is_known_to_hang(telemetry: Telemetry, gpus: SimulatedGpus) -> None:
    telemetry.sample()
    set_faults(gpus, hang_s=60)
    telemetry.sample()
    began = boottime()
    first = telemetry.pid
    second = wait_until(lambda: telemetry.sample() and telemetry.pid not in (None, first), what="a second sampler")
    for _ in range(20):
        assert telemetry.sample().devices == []
    assert second and telemetry.hung and boottime() - began < 5  # its first answer alone may take 20 s


def test_silent_driver_is_hung_and_comes_back(telemetry: Telemetry, gpus: SimulatedGpus) -> None:
    telemetry.sample()
    set_faults(gpus, hang_s=60)
    sample = telemetry.sample()
    assert telemetry.hung
    assert sample.devices == [] and sample.error is not None and sample.error.startswith("driver_hung")
    set_faults(gpus)
    assert wait_until(lambda: telemetry.sample().devices, what="a new sampler's answer")
    assert not telemetry.hung and telemetry.error is None


class Undying(Telemetry):
    """A sampler in D state, as far as one can be had without a broken driver: SIGKILL does not end it."""

    def _silent(self, deadline_s: float) -> None:
        super()._silent(deadline_s)
        self.killed = self._sampler
        assert self._sampler is not None
        self._sampler.poll = lambda: None  # type: ignore[method-assign]


def test_no_second_sampler_while_the_first_is_stuck(node: NodeSpec, gpus: SimulatedGpus) -> None:
    set_faults(gpus, hang_s=60)
    with Undying(node, SAMPLER, init_deadline_s=1.0) as telemetry:
        telemetry.sample()
        first = telemetry.killed
        set_faults(gpus)
        assert telemetry.memory([gpus.uuid(0)]) == {gpus.uuid(0): None}
        assert telemetry.hung and telemetry.killed is first
        assert first is not None
        del first.poll  # the driver lets go of it
        assert wait_until(lambda: telemetry.sample().devices)


def test_late_answer_is_not_taken_for_a_new_one(node: NodeSpec) -> None:
    late = (
        "import sys, json\n"
        "sys.stdin.readline()\n"
        "for line in sys.stdin:\n"
        "    n = json.loads(line)['id']\n"
        "    for i in (n - 1, n): print(json.dumps({'id': i, 'memory': {'GPU-a': i}}), flush=True)\n"
    )
    with Telemetry(node, [sys.executable, "-c", late]) as telemetry:
        assert telemetry.memory(["GPU-a"]) == {"GPU-a": 1}
        assert telemetry.memory(["GPU-a"]) == {"GPU-a": 2}


def test_killed_sampler_is_named_and_not_restarted_in_a_storm(telemetry: Telemetry) -> None:
    telemetry.sample()
    pid = telemetry.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    sample = telemetry.sample()
    assert sample.devices == [] and sample.error is not None and "ended with exit code -9" in sample.error
    assert not telemetry.hung
    telemetry.sample()
    assert telemetry.pid is None  # for a while


def test_sampler_that_can_not_start(node: NodeSpec) -> None:
    with Telemetry(node, [sys.executable, "-c", "import sys; sys.exit(7)"]) as telemetry:
        error = telemetry.sample().error
        assert error is not None and "ended with exit code 7" in error
