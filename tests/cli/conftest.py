from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.processes import find, scan
from tests.parts.command import Gpuctl


@pytest.fixture
def gpuctl(tmp_path: Path) -> Iterator[Gpuctl]:
    """The program, with a home, an inventory and nodes of the test's own; what it left running is ended afterwards."""
    program = Gpuctl(tmp_path)
    yield program
    for process in scan():
        if process.id.pid == os.getpid() or str(tmp_path) not in " ".join(process.argv):
            continue
        if find(process.id.pid) == process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.id.pid, signal.SIGKILL)
