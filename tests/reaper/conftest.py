"""The hostile program, compiled once, and a node of two simulated GPUs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.telemetry import Telemetry
from gpuctl.simulation.devices import SimulatedGpus, resolved
from gpuctl.wire.nodespec import NodeSpec
from tests.parts.gpus import SAMPLER, simulated_node

SOURCE = Path(__file__).with_name("hostile.c")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = tmp_path_factory.mktemp("hostile") / "hostile"
    subprocess.run(["cc", "-O1", "-Wall", "-pthread", "-o", str(program), str(SOURCE)], check=True)
    return str(program)


@pytest.fixture
def node(tmp_path: Path) -> NodeSpec:
    return resolved(simulated_node(tmp_path))


@pytest.fixture
def simulated(node: NodeSpec) -> SimulatedGpus:
    assert node.simulate is not None and node.simulate.folder is not None
    return SimulatedGpus(node.simulate.folder)


@pytest.fixture
def telemetry(node: NodeSpec) -> Iterator[Telemetry]:
    with Telemetry(node, SAMPLER) as telemetry:
        yield telemetry
