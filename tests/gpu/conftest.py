"""Tests on a real NVIDIA GPU, with PyTorch in the Python that runs them. Elsewhere they are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts.node import TestNode, node

HERE = Path(__file__).parent
REAL = Path("/dev/nvidiactl").exists() and importlib.util.find_spec("torch") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(300))
            if not REAL:
                item.add_marker(pytest.mark.skip(reason="needs a real NVIDIA GPU and PyTorch"))


@pytest.fixture
def real(tmp_path: Path) -> Iterator[TestNode]:
    """This machine's own GPUs."""
    with node(tmp_path, simulate=None) as made:
        yield made
