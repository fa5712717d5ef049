from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node.folders import RunFolder, StateFolder, try_lock
from gpuctl.node.journal import Journal
from gpuctl.node.leases import Leases
from gpuctl.node.machine import identity
from gpuctl.node.processes import find
from gpuctl.node.refusal import Refusal
from gpuctl.node.remove import remove
from gpuctl.wire.nodespec import NodeSpec
from tests.records.conftest import NewRun
from tests.records.test_queries import FINISHED, STARTED, ended


def runs(answer: dict[str, Any]) -> list[str]:
    return [gone["run"] for gone in answer["removed"] if "run" in gone]


def kept(answer: dict[str, Any]) -> dict[str, str]:
    return {stays["run"]: stays["why"] for stays in answer["kept"] if "run" in stays}


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


class Meanwhile:
    """What somebody else does between the look at a run and its lock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.act: Callable[[], object] = lambda: None
        monkeypatch.setattr("gpuctl.node.remove.try_lock", self._lock)

    def _lock(self, path: str) -> int | None:
        self.act()
        return try_lock(path)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


def relaunched(folder: RunFolder, *events: dict[str, Any]) -> None:
    journal = Journal(folder.journal)
    for event in ({"type": "relaunching", "params": {}}, *events):
        journal.append(**event)
    journal.close()


def test_one_that_was_relaunched_in_between_stays(node: NodeSpec, new_run: NewRun, meanwhile: Meanwhile) -> None:
    """Its supervisor died at once, say: nobody holds its lock."""
    folder = new_run("a-1", STARTED, FINISHED)
    meanwhile.act = lambda: relaunched(folder)
    assert "is live (relaunching)" in kept(remove(node, runs=["a-1"]))["a-1"]
    assert os.path.isdir(folder.path)


def test_and_one_that_left_processes_in_between(node: NodeSpec, new_run: NewRun, meanwhile: Meanwhile) -> None:
    folder = new_run("a-1", FINISHED)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    found = find(child.pid)
    assert found is not None
    started = {**STARTED, "pid": child.pid, "pid_start": found.id.start}
    meanwhile.act = lambda: relaunched(folder, started, {**FINISHED, "state": "failed"})
    try:
        assert "processes of it" in kept(remove(node, runs=["a-1"]))["a-1"]
    finally:
        child.communicate()
    meanwhile.act = lambda: None
    assert [gone["state"] for gone in remove(node, runs=["a-1"])["removed"]] == ["failed"]


def test_what_goes_is_told_as_it_was_last(node: NodeSpec, new_run: NewRun, meanwhile: Meanwhile) -> None:
    folder = new_run("a-1", FINISHED)
    meanwhile.act = lambda: relaunched(folder, STARTED, {**FINISHED, "state": "killed"})
    assert [gone["state"] for gone in remove(node, runs=["a-1"])["removed"]] == ["killed"]


def test_two_may_remove_the_same_run(node: NodeSpec, new_run: NewRun, meanwhile: Meanwhile) -> None:
    folder = new_run("a-1", FINISHED)
    new_run("b-1", FINISHED)
    meanwhile.act = lambda: shutil.rmtree(folder.path, ignore_errors=True)
    answer = remove(node, runs=["a-1", "b-1"])
    assert runs(answer) == ["b-1"]
    assert kept(answer) == {"a-1": "somebody else has removed it"}


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a folder that can't be removed: something is mounted in it; or, for who is not root, it is closed."""

    def make(folder: Path) -> None:
        (folder / "held").mkdir(parents=True)
        (folder / "held" / "file").touch()
        if os.getuid() != 0:
            (folder / "held").chmod(0o500)
        elif subprocess.run(["mount", "-t", "tmpfs", "none", str(folder / "held")], check=False).returncode != 0:
            pytest.skip("this root may mount nothing")

    yield make
    for held in tmp_path.rglob("held"):  # wherever it is by now
        if os.getuid() != 0:
            held.chmod(0o700)
        elif held.is_mount():
            subprocess.run(["umount", str(held)], check=True)


def test_what_cannot_be_deleted_is_told_and_keeps_nothing_else(
    node: NodeSpec, state: StateFolder, new_run: NewRun, hold: Callable[[Path], None]
) -> None:
    new_run("good-1", FINISHED)
    hold(Path(new_run("bad-1", FINISHED).attempts))
    hold(Path(state.runs, ".old.1.removed"))
    hold(Path(state.agent, "f" * 64))
    Path(state.agent, "e" * 64).mkdir()
    os.utime(Path(state.runs, ".old.1.removed"), (1.0, 1.0))
    answer = remove(node, keep=0)
    assert sorted(runs(answer)) == ["bad-1", "good-1"], "neither is a run any more"
    assert [gone["bundle"] for gone in answer["removed"] if "bundle" in gone] == ["e" * 64]
    paths = [stays["path"] for stays in answer["kept"]]
    assert len(paths) == 3 and str(Path(state.runs, ".old.1.removed")) in paths
    assert all("can't be deleted" in stays["why"] for stays in answer["kept"])
    assert state.all_runs() == []


@pytest.mark.parametrize(
    ("events", "host", "stays"),
    [
        ([STARTED], "elsewhere", True),
        ([], "elsewhere", True),
        ([STARTED, FINISHED], "elsewhere", False),
        ([STARTED], identity().host, False),
    ],
)
def test_bundles_stay_while_another_machine_may_run_from_them(
    node: NodeSpec, new_run: NewRun, events: list[dict[str, Any]], host: str, stays: bool
) -> None:
    """The state folder is in a home that they share; nobody sees the other's processes."""
    state, known = StateFolder(node), replace(identity(), host=host)
    new_run(
        "theirs-1", *({**event, "machine": known.to_json()} for event in events), created={"machine": known.to_json()}
    )
    for path in (Path(state.agent, "e" * 64), Path(state.agent, "e" * 64 + ".pyz")):
        path.touch()
    answer = remove(node, keep=0)
    assert [item["bundle"] for item in answer["kept"] if "bundle" in item] == sorted(os.listdir(state.agent))
    assert bool(os.listdir(state.agent)) == stays
    if stays:
        assert "another machine" in next(item["why"] for item in answer["kept"] if "bundle" in item)


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
