"""Simulated GPUs behave as real ones where a watchdog looks: memory lasts as long as its holders, and no longer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from gpuctl.simulation.devices import Context, DeviceFull, SimulatedGpus, resolved, visible
from gpuctl.simulation.nvml import SimulatedNvml
from gpuctl.wire.nodespec import NodeSpec, Simulate
from gpuctl.wire.samples import Xid
from tests.parts.gpus import holding, simulated_node
from tests.waiting import wait_until


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedGpus:
    return SimulatedGpus.make(str(tmp_path / "gpus"), Simulate(gpus=2))


def test_memory_is_taken_and_given_back(gpus: SimulatedGpus) -> None:
    context = Context(gpus, 0, 1000)
    assert (gpus.used_mib(0), gpus.used_mib(1)) == (1000, 0)
    context.grow(24)
    context.shrink(1000)
    assert gpus.used_mib(0) == 24
    context.close()
    assert gpus.used_mib(0) == 0


def test_what_does_not_fit_is_refused_and_changes_nothing(gpus: SimulatedGpus) -> None:
    context = Context(gpus, 0, 90_000)
    with pytest.raises(DeviceFull) as full:
        context.grow(10_000)
    assert (full.value.requested_mib, full.value.free_mib) == (10_000, gpus.capacity_mib - 90_000)
    with pytest.raises(DeviceFull):
        Context(gpus, 0, 10_000)
    assert gpus.used_mib(0) == 90_000
    context.close()


def test_capacity_is_what_cuda_offers_of_a_real_card(gpus: SimulatedGpus) -> None:
    assert f"{gpus.capacity_mib / 1024:.2f} GiB" == "94.97 GiB"


def test_killed_holder_frees_at_once(gpus: SimulatedGpus) -> None:
    with holding(gpus.folder, options=["--mib", "7000"]) as process:
        assert gpus.used_mib(0) == 7000
        process.kill()
        wait_until(lambda: gpus.used_mib(0) == 0, within_s=5)
    assert os.listdir(gpus.path("contexts", "0")) == []


def test_forked_child_keeps_a_dead_parents_memory(gpus: SimulatedGpus) -> None:
    with holding(gpus.folder, options=["--mib", "1643", "--fork"]) as process:
        group = process.pid
        process.kill()
        process.wait()
        assert [(held.pid, held.mib) for held in gpus.holdings(0)] == [(process.pid, 1643)]
        assert not Path(f"/proc/{process.pid}").exists()
        os.killpg(group, signal.SIGKILL)
        wait_until(lambda: gpus.used_mib(0) == 0, within_s=5)


def test_stopped_allocator_does_not_stop_the_reader(gpus: SimulatedGpus) -> None:
    with gpus.allocating(0):
        assert gpus.used_mib(0) == 0


def test_holder_has_the_files_of_all_gpus_open(gpus: SimulatedGpus) -> None:
    if shutil.which("fuser") is None:
        pytest.skip("fuser (package psmisc) is not installed")
    with holding(gpus.folder, visible="0") as process:
        for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
            found = subprocess.run(["fuser", gpus.path("dev", name)], capture_output=True, text=True, check=True)
            assert found.stdout.split() == [str(process.pid)]


def test_uuids_differ_between_folders_and_stay_in_one(tmp_path: Path) -> None:
    shape = Simulate(gpus=2)
    one, two = (SimulatedGpus.make(str(tmp_path / name), shape) for name in ("a", "b"))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert len({one.uuid(0), one.uuid(1), two.uuid(0), two.uuid(1)}) == 4
    assert SimulatedGpus.make(str(tmp_path / "link"), shape).uuid(0) == one.uuid(0)


def test_shape_follows_the_inventory(tmp_path: Path) -> None:
    folder = str(tmp_path / "gpus")
    SimulatedGpus.make(folder, Simulate(gpus=1))
    SimulatedGpus.make(folder, Simulate(gpus=3, model="Other"))
    assert [device.name for device in SimulatedNvml(folder).devices()] == ["Other"] * 3


def test_resolved_node_names_folder_and_device_files(tmp_path: Path) -> None:
    node = simulated_node(tmp_path)
    found = resolved(NodeSpec.from_json({**node.to_json(), "simulate": {"gpus": 2}}))
    assert found.simulate is not None and found.simulate.folder == str(tmp_path / "state/simulated/sim")
    assert found.devices == [f"{found.simulate.folder}/dev/nvidia*"]
    assert resolved(found) == found
    real = NodeSpec(name="real")
    assert resolved(real) is real


def test_visible_devices(gpus: SimulatedGpus) -> None:
    assert visible({}, gpus) == [0, 1]
    assert visible({"CUDA_VISIBLE_DEVICES": "1"}, gpus) == [1]
    assert visible({"CUDA_VISIBLE_DEVICES": ""}, gpus) == []
    assert visible({"CUDA_VISIBLE_DEVICES": gpus.uuid(1)}, gpus) == [1]


def test_power_tells_waiting_from_computing(gpus: SimulatedGpus) -> None:
    readings = SimulatedNvml(gpus.folder)

    def reading() -> tuple[float | None, int | None]:
        device = readings.devices()[0]
        return device.power_w, device.utilisation

    assert reading() == (66.0, 0)  # empty
    context = Context(gpus, 0, 100)
    assert reading() == (102.0, 0)  # an open context
    context.load(0.17, 100)
    assert reading() == (102.0, 100)  # a spinning kernel: utilisation proves nothing
    context.load(0.95, 100)
    assert reading() == (570.0, 100)
    context.close()
    assert reading() == (66.0, 0)


def test_memory_from_outside_shows_without_a_process(gpus: SimulatedGpus) -> None:
    Path(gpus.path("faults.json")).write_text('{"outside_mib": {"0": 10758}, "xids": [[31, 1]]}')
    readings = SimulatedNvml(gpus.folder)
    device = readings.devices()[0]
    assert (device.memory_used_mib, device.processes) == (10758, [])
    assert (readings.xids(), readings.xids()) == ([Xid(31, 1)], [])
