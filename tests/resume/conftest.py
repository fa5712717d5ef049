from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts.node import TestNode, node


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[TestNode]:
    """A node with two simulated GPUs."""
    with node(tmp_path) as made:
        yield made
