"""What is set aside before a relaunch, and what stays as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node import outputs
from gpuctl.node.folders import StateFolder, write_json
from gpuctl.node.journal import Journal
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import Outputs, Resume, RunSpec, Scalar, Watch


class Place:
    """A workdir, and a state folder with other runs in it."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.state = StateFolder(NodeSpec("here", state_dir=str(folder / "state")))

    def spec(
        self, *paths: str, run: str = "job-1", keep: bool = False, after: str | None = None, **keys: Any
    ) -> RunSpec:
        keys = {"workdir": str(self.work), **keys}
        return RunSpec(
            run, "job", "here", "true", after=after, outputs=Outputs(list(paths), "keep" if keep else "archive"), **keys
        )

    def known(self, spec: RunSpec, attempt: int = 1) -> dict[str, Scalar]:
        return {"run": spec.run, "job": spec.job, "attempt": attempt, "gpus": 0, "port": 0}

    def live(self, spec: RunSpec, *, ended: bool = False) -> None:
        def fill(folder: object) -> None:
            pass

        folder, _ = self.state.create_run(spec, fill)
        write_json(folder.spec_file, spec.to_json())
        journal = Journal(folder.journal)
        journal.append("run_created", params={})
        if ended:
            journal.append("run_finished", state="succeeded", why="")
        journal.close()

    def check(self, spec: RunSpec) -> None:
        outputs.check(spec, self.known(spec), self.state)

    def archive(self, spec: RunSpec, attempt: int = 1, staying: Sequence[str] = ()) -> outputs.Plan:
        plan = outputs.plan(spec, self.known(spec, attempt), attempt, self.state)
        outputs.carry_out(plan.moves, outputs.spared(str(self.work), list(staying)))
        return plan

    def write(self, *names: str) -> None:
        for name in names:
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    def tree(self) -> list[str]:
        return sorted(str(path.relative_to(self.work)) for path in self.work.rglob("*") if not path.is_dir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_files_and_folders_are_renamed_beside_themselves(place: Place) -> None:
    place.write("outputs/a", "outputs/deep/b", "train.log", "other")
    plan = place.archive(place.spec("outputs/", "train.log", "missing"))
    assert place.tree() == ["other", "outputs.attempt-1/a", "outputs.attempt-1/deep/b", "train.log.attempt-1"]
    assert [Path(path).name for path in plan.moves.values()] == ["outputs.attempt-1", "train.log.attempt-1"]


def test_nothing_is_overwritten(place: Place) -> None:
    place.write("outputs/a", "outputs.attempt-1/old")
    place.archive(place.spec("outputs"))
    assert place.tree() == ["outputs.attempt-1.2/a", "outputs.attempt-1/old"]


def test_twice_is_once(place: Place) -> None:
    place.write("outputs/a")
    plan = place.archive(place.spec("outputs"))
    place.write("outputs/later")
    outputs.carry_out(plan.moves, set())
    assert place.tree() == ["outputs.attempt-1/a", "outputs/later"]


def test_checkpoints_stay(place: Place) -> None:
    place.write("out/ckpt/1.pt", "out/ckpt/notes", "out/samples/s", "out/log")
    place.archive(place.spec("out"), staying=["out/ckpt/*.pt"])
    assert place.tree() == ["out.attempt-1/ckpt/notes", "out.attempt-1/log", "out.attempt-1/samples/s", "out/ckpt/1.pt"]
    place.archive(place.spec("out"), 2, staying=["out/ckpt/*.pt"])
    assert not (place.work / "out.attempt-2").exists(), "there was nothing to set aside"


def test_a_checkpoint_that_is_a_folder_stays_whole(place: Place) -> None:
    place.write("out/checkpoint-5/model.bin", "out/log")
    place.archive(place.spec("out"), staying=["out/checkpoint-*"])
    assert place.tree() == ["out.attempt-1/log", "out/checkpoint-5/model.bin"]


def test_what_a_checkpoints_link_leads_to_stays(place: Place) -> None:
    place.write("out/step_5.pt", "out/log")
    (place.work / "last.pt").symlink_to("out/step_5.pt")
    place.archive(place.spec("out"), staying=["last.pt"])
    assert place.tree() == ["last.pt", "out.attempt-1/log", "out/step_5.pt"]


def test_a_link_is_renamed_and_not_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far/precious").write_text("x")
    (place.work / "outputs").symlink_to(tmp_path / "far")
    place.write("results/a")
    (place.work / "results/inner").symlink_to(tmp_path / "far")
    place.archive(place.spec("outputs", "results"))
    assert os.readlink(place.work / "outputs.attempt-1") == str(tmp_path / "far")
    assert os.readlink(place.work / "results.attempt-1/inner") == str(tmp_path / "far")
    assert sorted(os.listdir(tmp_path / "far")) == ["precious"]
    assert "far.attempt-1" not in os.listdir(tmp_path)


def test_a_link_that_leads_out_is_refused_at_launch_and_left_alone_later(place: Place, tmp_path: Path) -> None:
    (tmp_path / "far/outputs").mkdir(parents=True)
    (place.work / "link").symlink_to(tmp_path / "far")
    spec = place.spec("link/outputs")
    with pytest.raises(Refusal, match="a link leads") as refused:
        place.check(spec)
    assert refused.value.code == 2
    plan = place.archive(spec)
    assert (plan.moves, list(plan.stays)) == ({}, [str(tmp_path / "far/outputs")])
    assert os.listdir(tmp_path / "far") == ["outputs"]


@pytest.mark.parametrize("path", [".", "..", "/", "../state"])
def test_what_holds_the_workdir_or_the_state_can_not_be_renamed(place: Place, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        place.check(place.spec(path))
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("mine", "theirs"), [("out", "out"), ("out", "out/deep"), ("out/deep", "out"), ("./out/", "out")]
)
def test_a_path_of_another_live_run(place: Place, mine: str, theirs: str) -> None:
    place.live(place.spec(theirs, run="other-1", keep=True))
    with pytest.raises(Refusal, match="other-1") as refused:
        place.check(place.spec(mine))
    assert refused.value.code == 5
    place.write("out/deep/a")
    plan = place.archive(place.spec(mine))
    assert (plan.moves, place.tree()) == ({}, ["out/deep/a"])


def test_a_run_that_keeps_is_refused_beside_one_that_archives(place: Place) -> None:
    place.live(place.spec("out", run="other-1"))
    with pytest.raises(Refusal, match="other-1"):
        place.check(place.spec("out", keep=True))
    place.check(place.spec("out2"))


def test_runs_that_are_no_obstacle(place: Place) -> None:
    place.live(place.spec("out", run="ended-1"), ended=True)
    place.live(place.spec("out", run="keeps-1", keep=True))
    place.check(place.spec("out", keep=True))
    place.check(place.spec("out", after="keeps-1"))
    place.live(place.spec("elsewhere-{run}", run="named-1"))
    place.check(place.spec("elsewhere-{run}", keep=True))


def test_the_same_place_by_another_name(place: Place, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(place.work)
    place.live(place.spec(str(tmp_path / "alias/out"), run="other-1"))
    with pytest.raises(Refusal, match="other-1"):
        place.check(place.spec("out"))


@pytest.mark.parametrize(
    ("keys", "loses"),
    [
        ({"workdir": "{}/out/inner"}, True),
        ({"watch": Watch(logs=["out/*.log"])}, True),
        ({"watch": Watch(logs=["**/*.log"])}, True),
        ({"resume": Resume("out/ckpt/step_*.pt", "{latest}")}, True),
        ({"resume": Resume("last.pt", "{latest}")}, False),
        ({"watch": Watch(logs=["**/*.txt", "logs/*", "outer*"])}, False),
        ({}, False),
    ],
)
def test_all_that_another_live_run_uses_stays(place: Place, keys: dict[str, Any], loses: bool) -> None:
    """Its workdir, its logs and its checkpoints as well as its outputs, whichever of the two came first."""
    keys = {name: value.format(place.work) if isinstance(value, str) else value for name, value in keys.items()}
    place.write("out/a.log", "out/inner/b")
    theirs, mine = place.spec(run="other-1", keep=True, **keys), place.spec("out/")
    place.live(theirs)
    if loses:
        with pytest.raises(Refusal, match="other-1"):
            place.check(mine)
    else:
        place.check(mine)
    plan = place.archive(mine)
    assert (plan.moves == {}) is loses
    assert (place.work / "out/a.log").exists() is loses


def test_a_run_that_begins_in_what_a_live_one_would_rename(place: Place) -> None:
    place.live(place.spec("out", run="other-1"))
    with pytest.raises(Refusal, match="other-1"):
        place.check(place.spec(workdir=str(place.work / "out/deep"), keep=True))
    place.check(place.spec(workdir=str(place.work / "elsewhere"), keep=True))
