"""The hostile program, compiled once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("hostile.c")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = tmp_path_factory.mktemp("hostile") / "hostile"
    subprocess.run(["cc", "-O1", "-Wall", "-pthread", "-o", str(program), str(SOURCE)], check=True)
    return str(program)
