"""The job files that ship: each loads, says what it is, and has a twin that runs on simulated GPUs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from gpuctl.spec.inventory import load_inventory
from gpuctl.spec.job import load_job
from tests.parts.gpus import REPOSITORY

JOBS = REPOSITORY / "jobs"
REAL = ("eagle3-prepare", "eagle3-extract", "eagle3-vocab", "eagle3-train", "dflash-train")
TRIALS = ("hung-collective-sim", "input-bound-sim", "host-oom-sim")  # of what the watchdog sees, without a real one


def test_every_pipeline_has_a_twin() -> None:
    assert {path.stem for path in JOBS.glob("*.yaml")} == {*REAL, *(f"{name}-sim" for name in REAL), *TRIALS}


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_file_loads_and_is_documented(path: Path) -> None:
    assert load_job(path).name == path.stem
    assert path.read_text().startswith("# ")
    addresses = re.findall(r"\d+\.\d+\.\d+\.\d+", path.read_text())
    assert all(address.startswith("192.0.2.") for address in addresses)


@pytest.mark.parametrize("name", REAL)
def test_twin_gives_way_as_the_real_one_does(name: str) -> None:
    real, twin = load_job(JOBS / f"{name}.yaml"), load_job(JOBS / f"{name}-sim.yaml")
    assert (twin.on_oom, twin.gpus) == (real.on_oom, real.gpus)


@pytest.mark.parametrize("name", [*(f"{name}-sim" for name in REAL), *TRIALS])
def test_twin_runs_on_the_simulated_node_that_ships(name: str) -> None:
    twin = load_job(JOBS / f"{name}.yaml")
    inventory = load_inventory(REPOSITORY / "inventory.yaml")
    assert twin.node == "sim" and inventory.node(twin.node).simulate is not None
    modules = re.findall(r"gpuctl\.simulation\.\w+", twin.command)
    assert modules and all(importlib.util.find_spec(module) for module in modules)


@pytest.mark.parametrize("name", REAL)
def test_real_one_names_no_machine(name: str) -> None:
    """Which machine it runs on is the user's to say: a fresh checkout reaches none."""
    assert load_job(JOBS / f"{name}.yaml").node is None
