from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import pytest

from gpuctl.node.folders import RunFolder, StateFolder
from gpuctl.node.journal import Journal
from gpuctl.node.machine import identity
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec


class NewRun(Protocol):
    """Makes a run's folder as `start` does, with what its journal begins with and any events after that."""

    def __call__(
        self, run: str = ..., *events: dict[str, Any], created: dict[str, Any] | None = None, **spec: Any
    ) -> RunFolder: ...


@pytest.fixture
def node(tmp_path: Path) -> NodeSpec:
    return NodeSpec("here", state_dir=str(tmp_path / "state"), lock_dir=str(tmp_path / "locks"))


@pytest.fixture
def state(node: NodeSpec) -> StateFolder:
    return StateFolder(node)


@pytest.fixture
def new_run(state: StateFolder) -> NewRun:
    def make(
        run: str = "train-aaaaaa", *events: dict[str, Any], created: dict[str, Any] | None = None, **spec: Any
    ) -> RunFolder:
        def fill(folder: RunFolder) -> None:
            journal = Journal(folder.journal)
            fields = {"by": "me@here", "machine": identity().to_json(), **(created or {})}
            journal.append("run_created", sync=True, **fields)
            for event in events:
                journal.append(**event)
            journal.close()

        spec = {"job": run.rpartition("-")[0], "node": "here", "command": "true", **spec}
        folder, _ = state.create_run(RunSpec(run=run, **spec), fill)
        return folder

    return make


@pytest.fixture
def lock_fds() -> Any:
    """Descriptors to close at the end, whatever a test does."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)
