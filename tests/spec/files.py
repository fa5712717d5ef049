"""Job files and inventories for tests: written, loaded, and their faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.errors import BadFile
from gpuctl.spec.inventory import Inventory, load_inventory
from gpuctl.spec.job import Job, load_job

SMALLEST = "name: small\ncommand: python train.py\n"


def job(folder: Path, text: str) -> Job:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return load_job(path)


def job_faults(folder: Path, text: str) -> list[str]:
    """The faults of a broken job file, its folder left away: `job.yaml:3: gpus: expected …`."""
    with pytest.raises(BadFile) as caught:
        job(folder, text)
    assert caught.value.exit_code == 2
    return [line.removeprefix(f"{folder}/") for line in caught.value.what.splitlines()]


def inventory(folder: Path, text: str) -> Inventory:
    path = folder / "inventory.yaml"
    path.write_text(text, encoding="utf-8")
    return load_inventory(path)


def inventory_faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(BadFile) as caught:
        inventory(folder, text)
    return [line.removeprefix(f"{folder}/") for line in caught.value.what.splitlines()]
