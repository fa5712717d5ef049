"""Real pynvml over a stand-in driver. Each reader is a process of its own: a process loads one NVML for life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.telemetry import Telemetry
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import Xid
from tests.parts.gpus import SAMPLER
from tests.parts.nvml import StandInDriver

MIB = 1 << 20


@pytest.fixture
def driver(tmp_path: Path) -> StandInDriver:
    return StandInDriver(tmp_path)


@pytest.fixture
def telemetry(driver: StandInDriver) -> Iterator[Telemetry]:
    node = NodeSpec(name="gpu1", nvml_library=str(driver.library))
    with Telemetry(node, SAMPLER, answer_deadline_s=1.0) as telemetry:
        yield telemetry


def test_every_reading(driver: StandInDriver, telemetry: Telemetry) -> None:
    driver.gpus[1].update(
        memory=103018 * MIB, utilisation=100, power=691250, temperature=64, clock=1455, compute=f"812:{103018 * MIB}"
    )
    driver.say()
    sample = telemetry.sample()
    assert (sample.error, sample.driver) == (None, "580.65.06")
    assert sample.devices[0].to_json() == {
        "index": 0,
        "uuid": "GPU-aaaa",
        "name": "NVIDIA H200",
        "pci": "00000000:06:00.0",
        "minor": 0,
        "memory_used_mib": 103018,
        "memory_total_mib": 143771,
        "utilisation": 100,
        "power_w": 691.25,
        "power_limit_w": 700.0,
        "temperature_c": 64,
        "sm_clock_mhz": 1455,
        "mig": False,
        "processes": [{"pid": 812, "used_mib": 103018}],
        "error": None,
    }


def test_empty_gpu_reads_zero_though_the_driver_keeps_some(telemetry: Telemetry) -> None:
    assert [device.memory_used_mib for device in telemetry.sample().devices] == [0, 0]
    assert telemetry.memory(["GPU-aaaa", "GPU-bbbb"]) == {"GPU-aaaa": 0, "GPU-bbbb": 0}


def test_index_is_the_order_of_the_bus(telemetry: Telemetry) -> None:
    assert [(d.index, d.uuid, d.minor) for d in telemetry.sample().devices] == [(0, "GPU-aaaa", 0), (1, "GPU-bbbb", 1)]


def test_readings_follow_the_driver(driver: StandInDriver, telemetry: Telemetry) -> None:
    assert telemetry.memory(["GPU-aaaa"]) == {"GPU-aaaa": 0}
    driver.gpus[1]["memory"] = 7 * MIB + 1
    driver.say()
    assert telemetry.memory(["GPU-aaaa"]) == {"GPU-aaaa": 8}  # never rounded down to what is not there


@pytest.mark.parametrize(
    ("reading", "field"),
    [
        ("memory", "memory_used_mib"),
        ("utilisation", "utilisation"),
        ("power", "power_w"),
        ("limit", "power_limit_w"),
        ("temperature", "temperature_c"),
        ("clock", "sm_clock_mhz"),
        ("mig", "mig"),
        ("minor", "minor"),
        ("name", "name"),
    ],
)
def test_absent_reading_is_none(driver: StandInDriver, telemetry: Telemetry, reading: str, field: str) -> None:
    driver.gpus[1][f"error.{reading}"] = 3  # not supported
    driver.say()
    first, second = telemetry.sample().devices
    assert getattr(first, field) is None and first.error is None
    assert getattr(second, field) is not None
    others = {key for key, value in first.to_json().items() if value is None} - {"error", field}
    assert others <= {"memory_total_mib"}  # read together with what is used


def test_processes_of_both_kinds_each_once(driver: StandInDriver, telemetry: Telemetry) -> None:
    driver.gpus[1].update(compute=f"900:-1,812:{5 * MIB}", graphics=f"812:{5 * MIB},77:{MIB}")
    driver.gpus[0].update({"error.compute": 4, "error.graphics": 4})  # no permission
    driver.say()
    first, second = telemetry.sample().devices
    assert first.processes is not None and second.processes is None
    assert [(p.pid, p.used_mib) for p in first.processes] == [(77, 1), (812, 5), (900, None)]


def test_lost_gpu_is_named_and_the_other_read(driver: StandInDriver, telemetry: Telemetry) -> None:
    telemetry.sample()
    driver.gpus[1]["error"] = 15
    driver.say()
    lost, other = telemetry.sample().devices
    assert (lost.error, lost.memory_used_mib, lost.uuid) == ("GPU is lost", None, "GPU-aaaa")
    assert other.memory_used_mib == 0
    assert telemetry.memory(["GPU-aaaa", "GPU-bbbb"]) == {"GPU-aaaa": None, "GPU-bbbb": 0}


def test_gpu_without_a_handle_comes_last(driver: StandInDriver, telemetry: Telemetry) -> None:
    driver.gpus[1]["error.handle"] = 999
    driver.say()
    good, bad = telemetry.sample().devices
    assert (good.index, good.uuid, bad.index, bad.error) == (0, "GPU-bbbb", 1, "Unknown Error")


def test_driver_that_is_not_loaded_is_tried_again(driver: StandInDriver, telemetry: Telemetry) -> None:
    driver.lines["init"] = 9
    driver.say()
    sample = telemetry.sample()
    assert sample.devices == [] and sample.error is not None
    assert sample.error == f"Driver Not Loaded ({driver.library})"
    driver.lines["init"] = 0
    driver.say()
    assert [device.uuid for device in telemetry.sample().devices] == ["GPU-aaaa", "GPU-bbbb"]


def test_library_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "none.so"
    with Telemetry(NodeSpec(name="gpu1", nvml_library=str(missing)), SAMPLER) as telemetry:
        error = telemetry.sample().error
        assert error is not None and str(missing) in error


def test_driver_from_before_memory_v2(tmp_path: Path) -> None:
    driver = StandInDriver(tmp_path, memory_v2=False)
    driver.gpus[1]["memory"] = 3 * MIB
    driver.say()
    with Telemetry(NodeSpec(name="gpu1", nvml_library=str(driver.library)), SAMPLER) as telemetry:
        assert [device.memory_used_mib for device in telemetry.sample().devices] == [3, 0]


def test_each_xid_is_told_once(driver: StandInDriver, telemetry: Telemetry) -> None:
    assert telemetry.sample().xids == []
    driver.lines |= {"xid 0": "0 31", "xid 1": "1 43"}
    driver.say()
    assert telemetry.sample().xids == [Xid(31, 1), Xid(43, 0)]  # which the bus puts in the other order
    assert telemetry.sample().xids == []


def test_driver_without_events(driver: StandInDriver, telemetry: Telemetry) -> None:
    driver.lines["events"] = 3
    driver.say()
    sample = telemetry.sample()
    assert sample.xids == [] and len(sample.devices) == 2


def test_silent_driver_is_hung(driver: StandInDriver, telemetry: Telemetry) -> None:
    telemetry.sample()
    driver.lines["hang"] = 60
    driver.say()
    sample = telemetry.sample()
    assert telemetry.hung and sample.error is not None and sample.error.startswith("driver_hung")
    json.dumps(sample.to_json())
