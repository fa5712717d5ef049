from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuctl.cli.program import run
from tests.parts.command import Done, Gpuctl
from tests.parts.leftovers import end_all

Inside = Callable[..., Done]


@pytest.fixture
def inside(gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Inside:
    """As `gpuctl`, within this process: for what ends before anything is started, many times as fast."""
    for name in [name for name in os.environ if name.startswith("GPUCTL_")]:
        monkeypatch.delenv(name)
    for name, value in gpuctl.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(gpuctl.work)

    def call(*words: str, code: int = 0) -> Done:
        found = run(words)
        out, err = capfd.readouterr()
        assert found == code, f"gpuctl {words} → {found}: {out} {err}"
        assert "internal error" not in err, err
        return Done(found, out, err)

    return call


@pytest.fixture
def gpuctl(tmp_path: Path) -> Iterator[Gpuctl]:
    """The program, with a home, an inventory and nodes of the test's own; what it left running is ended afterwards."""
    program = Gpuctl(tmp_path)
    yield program
    end_all(tmp_path)
