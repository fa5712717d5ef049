"""Which files are checkpoints to go on from: whole ones, the newest first."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from gpuctl.node.checkpoints import checkpoints, looks_whole

THEN = 1_700_000_000.0


def _write(path: Path, data: bytes = b"weights", *, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (THEN - age_s, THEN - age_s))
    return path


def _found(folder: Path, *patterns: str) -> list[str]:
    return [os.path.relpath(each.path, folder) for each in checkpoints(str(folder), patterns)]


def test_the_newest_first(tmp_path: Path) -> None:
    for step, age in ((100, 30), (200, 20), (300, 10)):
        _write(tmp_path / f"ckpt/step_{step}.pt", age_s=age)
    assert _found(tmp_path, "ckpt/*.pt") == ["ckpt/step_300.pt", "ckpt/step_200.pt", "ckpt/step_100.pt"]


def test_of_one_time_the_higher_number_is_the_newer(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        _write(tmp_path / f"step_{step}.pt")
    assert _found(tmp_path, "*.pt") == ["step_100.pt", "step_10.pt", "step_9.pt"]


@pytest.mark.parametrize("name", ["step_2.pt.tmp", "step_2.pt.part", "tmp-step_2.pt", "step_2.pt.tmp.17", "step_2.pt~"])
def test_names_that_say_unfinished(tmp_path: Path, name: str) -> None:
    _write(tmp_path / name)
    _write(tmp_path / "step_1.pt", age_s=9)
    assert _found(tmp_path, "*step_*") == ["step_1.pt"]


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    _write(tmp_path / "a.pt", b"")
    assert _found(tmp_path, "*.pt") == []


def test_a_folder_is_one_checkpoint_as_new_as_its_newest_file(tmp_path: Path) -> None:
    _write(tmp_path / "checkpoint-500/model.bin", age_s=50)
    _write(tmp_path / "checkpoint-500/trainer_state.json", age_s=5)
    _write(tmp_path / "checkpoint-1000/model.bin", age_s=30)
    (tmp_path / "checkpoint-2000").mkdir()
    _write(tmp_path / "checkpoint-3000/model.bin.tmp")
    found = checkpoints(str(tmp_path), ["checkpoint-*"])
    assert [Path(each.path).name for each in found] == ["checkpoint-500", "checkpoint-1000"]
    assert found[0].written == THEN - 5


def test_a_cut_archive_is_passed_over(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "old.pt", "w") as archive:
        archive.writestr("data.pkl", b"x" * 5000)
    os.utime(tmp_path / "old.pt", (THEN - 60, THEN - 60))
    _write(tmp_path / "new.pt", (tmp_path / "old.pt").read_bytes()[:3000])
    assert _found(tmp_path, "*.pt") == ["old.pt"]


def test_cut_safetensors(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(16)
    path = tmp_path / "model.safetensors"
    for data, expected in ((whole, True), (whole[:-1], False), (whole[:12], False), (whole[:4], False)):
        path.write_bytes(data)
        assert looks_whole(str(path)) is expected


def test_hostile_names(tmp_path: Path) -> None:
    folder = tmp_path / "a [b]*"
    name = "step $(x) 'q' \n1.pt"
    _write(folder / name)
    assert _found(folder, "*.pt") == [name]


def test_a_pattern_may_be_a_whole_path_or_go_deep(tmp_path: Path) -> None:
    _write(tmp_path / "a/b/c.pt")
    assert _found(tmp_path, str(tmp_path / "a/*/c.pt")) == ["a/b/c.pt"]
    assert _found(tmp_path, "**/*.pt", "a/b/*.pt") == ["a/b/c.pt"]


def test_a_look_at_checkpoints_costs_no_more_than_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`**` leads neither round in circles nor through all of a data set."""
    monkeypatch.setattr("gpuctl.node.checkpoints._MOST_NAMES", 50)
    _write(tmp_path / "out/last.pt")
    (tmp_path / "out/again").symlink_to(tmp_path)
    for number in range(100):
        _write(tmp_path / f"out/data/{number}/image.jpg")
    assert _found(tmp_path, "**/*.pt") == ["out/last.pt"]


def test_patterns_lead_where_their_words_say(tmp_path: Path) -> None:
    folder = tmp_path / "[1]"
    _write(folder / "ckpt-1/model.bin")
    assert [each.path for each in checkpoints(str(folder), ["ckpt-*/"])] == [str(folder / "ckpt-1")]
    assert [each.path for each in checkpoints(str(folder / "x"), ["../ckpt-*"])] == []
    (folder / "x").mkdir()
    assert [each.path for each in checkpoints(str(folder / "x"), ["../ckpt-*"])] == [str(folder / "ckpt-1")]


TRAINER = ["model-00001-of-00002.safetensors.bin", "model-00002-of-00002.safetensors.bin", "optimizer.pt", "rng_0.pth"]
ZERO = ["latest", "global_step{}/rank_0_states.pt", "global_step{}/rank_1_states.pt", "log.17{}00000000.host"]


def _folders(folder: Path, *contents: list[str]) -> list[str]:
    """Checkpoints 500, 1000, … with these files, the last the newest; those that are found, the newest first."""
    for place, names in enumerate(contents):
        step = 500 * (place + 1)
        for name in names:
            _write(folder / f"checkpoint-{step}" / name.format(step), age_s=100.0 - place)
    return [name.rpartition("-")[2] for name in _found(folder, "checkpoint-*")]


@pytest.mark.parametrize("names", [TRAINER, ZERO])
def test_a_folder_that_lacks_what_older_ones_have(tmp_path: Path, names: list[str]) -> None:
    for missing in range(len(names)):
        half = names[:missing] + names[missing + 1 :]
        for older in (1, 3):
            folder = tmp_path / f"{missing}-{older}"
            found = _folders(folder, *[names] * older, half)
            assert found == [str(500 * place) for place in range(older, 0, -1)], half
    assert _folders(tmp_path / "whole", names, names, names) == ["1500", "1000", "500"]
    assert _folders(tmp_path / "more", names, [*names, "extra"], names) == ["1500", "1000", "500"]
    assert _folders(tmp_path / "first", names[:1]) == ["500"], "nothing to compare it with"


def test_a_job_that_writes_less_from_now_on_is_followed(tmp_path: Path) -> None:
    less = TRAINER[:2]
    assert _folders(tmp_path, TRAINER, TRAINER, less, less, less) == ["2500", "2000", "1000", "500"]


def test_only_folders_beside_each_other_are_compared(tmp_path: Path) -> None:
    _write(tmp_path / "a/step-1/model", age_s=9)
    _write(tmp_path / "a/step-1/optimizer", age_s=9)
    _write(tmp_path / "b/step-2/model", age_s=5)
    _write(tmp_path / "step-3", age_s=3)
    assert _found(tmp_path, "*/step-*", "step-*") == ["step-3", "b/step-2", "a/step-1"]
