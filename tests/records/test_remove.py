from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node.folders import StateFolder, try_lock
from gpuctl.node.leases import Leases
from gpuctl.node.machine import identity
from gpuctl.node.refusal import Refusal
from gpuctl.node.remove import remove
from gpuctl.wire.nodespec import NodeSpec
from tests.records.conftest import NewRun
from tests.records.test_queries import FINISHED, STARTED, ended


def runs(answer: dict[str, Any]) -> list[str]:
    return [gone["run"] for gone in answer["removed"] if "run" in gone]


def kept(answer: dict[str, Any]) -> dict[str, str]:
    return {stays["run"]: stays["why"] for stays in answer["kept"]}


def test_an_ended_run_goes_and_a_line_of_history_stays(node: NodeSpec, state: StateFolder, new_run: NewRun) -> None:
    folder = new_run("a-1", STARTED, FINISHED, params={"batch": 8})
    with Leases(node).locked():
        Leases(node).take(["GPU-0"], "a-1")
    answer = remove(node, runs=["a-1"])
    assert runs(answer) == ["a-1"] and answer["removed"][0]["bytes"] >= 65536
    assert os.listdir(state.runs) == [] and not os.path.exists(folder.path)
    assert os.listdir(Leases(node).folder) == []
    line = json.loads(Path(state.history).read_text())
    assert (line["run"], line["state"], line["params"], line["gpus"]) == ("a-1", "succeeded", {"batch": 8}, [0])


def test_a_dry_run_tells_and_does_nothing(node: NodeSpec, state: StateFolder, new_run: NewRun) -> None:
    new_run("a-1", FINISHED)
    assert runs(remove(node, runs=["a-1"], dry_run=True)) == ["a-1"]
    assert os.listdir(state.runs) == ["a-1"] and not os.path.exists(state.history)


def test_a_live_run_never_goes(node: NodeSpec, new_run: NewRun) -> None:
    folder = new_run("a-1", STARTED)
    new_run("b-1", FINISHED)
    answer = remove(node, runs=["a-1", "b-1"])
    assert runs(answer) == ["b-1"]
    assert "is live (loading)" in kept(answer)["a-1"]
    assert os.path.isdir(folder.path)
    assert "a-1" in kept(remove(node, older_than_s=0.0))


def test_nor_one_that_is_just_being_relaunched(node: NodeSpec, new_run: NewRun, lock_fds: list[int]) -> None:
    fd = try_lock(new_run("a-1", FINISHED).lock)
    assert fd is not None
    lock_fds.append(fd)
    assert kept(remove(node, runs=["a-1"])) == {"a-1": "a supervisor has it"}


def test_nor_one_whose_processes_live_on(node: NodeSpec, new_run: NewRun) -> None:
    folder = new_run("a-1", STARTED, FINISHED)
    marks = {"GPUCTL_RUN": "a-1", "GPUCTL_DIR": folder.attempt(1).path}
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env=marks, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert "processes of it" in kept(remove(node, runs=["a-1"]))["a-1"]
    finally:
        child.communicate(b"\n")
    assert runs(remove(node, runs=["a-1"])) == ["a-1"]


def test_nor_another_machines(node: NodeSpec, new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    new_run("a-1", FINISHED)
    monkeypatch.setattr("gpuctl.node.remove.identity", lambda: replace(identity(), host="elsewhere"))
    assert kept(remove(node, runs=["a-1"])) == {"a-1": f"belongs to {identity().host}"}


def test_no_such_run(node: NodeSpec, new_run: NewRun) -> None:
    new_run("a-1", FINISHED)
    with pytest.raises(Refusal) as refusal:
        remove(node, runs=["a-1", "none-1"])
    assert refusal.value.code == 3
    assert runs(remove(node, runs=["a-1"])) == ["a-1"], "nothing had gone before the refusal"


@pytest.mark.parametrize(
    ("how", "gone"),
    [
        ({"older_than_s": 86400.0}, {"old-1", "older-1"}),
        ({"keep": 1}, {"old-1", "older-1"}),
        ({"keep": 2, "older_than_s": 0.0}, {"older-1"}),
        ({"keep": 0}, {"new-1", "old-1", "older-1"}),
        ({"keep": 3}, set()),
        ({}, set()),
    ],
)
def test_prune_by_age_and_by_number(node: NodeSpec, new_run: NewRun, how: dict[str, Any], gone: set[str]) -> None:
    for run, days in ("new-1", 0.1), ("old-1", 2), ("older-1", 40):
        new_run(run, ended(days), created={"time": ended(days + 1)["time"]})
    assert set(runs(remove(node, **how))) == gone


def test_outputs_that_were_set_aside_go_only_where_asked_for(node: NodeSpec, new_run: NewRun, tmp_path: Path) -> None:
    archive, outside = tmp_path / "outputs.a-1.1", tmp_path / "checkpoint"
    for folder in (archive, outside):
        folder.mkdir()
        (folder / "data").write_bytes(b"x" * 5000)
    (archive / "link").symlink_to(outside)
    relaunching = {"type": "relaunching", "archived": [str(archive)]}
    new_run("a-1", relaunching, FINISHED), new_run("b-1", relaunching, FINISHED)
    remove(node, runs=["a-1"])
    assert archive.is_dir()
    (gone,) = remove(node, runs=["b-1"], archives=True)["removed"]
    assert gone["archives"] == [str(archive)] and not archive.exists()
    assert (outside / "data").exists(), "no link is followed"


def test_prune_removes_bundles_that_nothing_runs_from(node: NodeSpec, state: StateFolder) -> None:
    state.ensure()
    unused, used = "a" * 64, "b" * 64
    for digest in (unused, used):
        Path(state.agent, f"{digest}.pyz").write_text("import sys; sys.stdin.read()")
        Path(state.agent, digest).mkdir()
    Path(state.agent, "notes.txt").write_text("mine")
    child = subprocess.Popen([sys.executable, f"{state.agent}/{used}.pyz"], stdin=subprocess.PIPE)
    try:
        removed = {gone["bundle"] for gone in remove(node)["removed"]}
    finally:
        child.communicate()
    assert removed == {unused, f"{unused}.pyz"}
    assert sorted(os.listdir(state.agent)) == [used, f"{used}.pyz", "notes.txt"]


def test_prune_clears_away_what_a_crash_left_half_made(node: NodeSpec, state: StateFolder, new_run: NewRun) -> None:
    new_run("a-1", FINISHED)
    for name in (".a-2.x1y2", ".a-3.removed"):
        os.mkdir(os.path.join(state.runs, name))
    os.utime(os.path.join(state.runs, ".a-3.removed"), (0, 0))
    remove(node)
    assert sorted(os.listdir(state.runs)) == [".a-2.x1y2", "a-1"]
