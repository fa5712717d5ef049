"""Which GPUs a run gets; and what is made of one that gives no reading: never an empty one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from gpuctl.node.allocation import choose
from gpuctl.node.cleaning import Cleaning
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.samples import DeviceProcess, DeviceSample, Sample

NODE = NodeSpec("here", idle_mib=10)


def device(index: int, mib: int | None, *pids: int) -> DeviceSample:
    return DeviceSample(index, f"GPU-{index}", memory_used_mib=mib, processes=[DeviceProcess(pid) for pid in pids])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_emptiest_first_and_the_unknown_last(order: tuple[int, ...]) -> None:
    mib = [None, 3, 0, None]
    sample = Sample("", 0.0, [device(place, mib[which]) for place, which in enumerate(order)])
    for count in range(1, 5):
        spec = RunSpec(run="a-1", job="a", node="here", command="true", gpus=count)
        chosen = [each.memory_used_mib for each in choose(spec, NODE, sample, {})]
        assert sorted(chosen, key=lambda mib: (mib is None, mib)) == [0, 3, None, None][:count]
        assert [each.index for each in choose(spec, NODE, sample, {})] == sorted(
            each.index for each in choose(spec, NODE, sample, {})
        )


def nothing_there(*devices: DeviceSample, of_pids: list[int] | None = None) -> bool:
    """What the cleaning of a run on GPUs 0 and 1 says of such a reading."""
    supervisor: Any = SimpleNamespace(
        telemetry=SimpleNamespace(sample=lambda: Sample("", 0.0, list(devices))),
        placement=SimpleNamespace(devices=[device(0, 0), device(1, 0)]),
        node=NODE,
    )
    return Cleaning(supervisor)._nothing_there(of_pids)


def test_only_gpus_that_say_so_are_empty() -> None:
    assert nothing_there(device(0, 0), device(1, 10))
    assert not nothing_there(device(0, 0), device(1, 11))
    assert not nothing_there(device(0, 0), device(1, None))
    assert not nothing_there(device(0, 0)), "one of them is not listed"
    assert not nothing_there()
    assert nothing_there(device(0, 0), device(1, 0), device(2, 500)), "another run's"


def test_whether_processes_hold_anything_is_what_readings_say() -> None:
    mine = [7]
    assert nothing_there(device(0, 0, 7), device(1, 0), of_pids=mine), "an open context is no memory"
    assert not nothing_there(device(0, 50, 7), device(1, 0), of_pids=mine)
    assert not nothing_there(device(0, 50), device(1, 0), of_pids=mine), "held, and nobody is named"
    assert nothing_there(device(0, 50, 1), device(1, 0), of_pids=mine), "pid 1's"
    assert nothing_there(device(0, None), device(1, None), of_pids=mine), "no reading proves nothing"
    assert nothing_there(of_pids=mine)
    assert not nothing_there(device(0, None, 7), device(1, 0), of_pids=mine)
