from __future__ import annotations

import multiprocessing
import os
import pwd
import stat
from pathlib import Path

import pytest

from gpuctl.node.folders import RunFolder, StateFolder, expand, locked, try_lock, write_json
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import OnOom, RunSpec
from tests.records.conftest import NewRun

HOME = pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize(
    ("path", "base", "expected"),
    [
        ("~", None, HOME),
        ("~/.gpuctl", None, f"{HOME}/.gpuctl"),
        ("runs", None, f"{HOME}/runs"),
        ("logs/a", "/data", "/data/logs/a"),
        ("~/logs", "/data", f"{HOME}/logs"),
        ("/a/../b", None, "/b"),
        ("~other", "/data", "/data/~other"),
    ],
)
def test_paths_are_below_the_passwd_entrys_home(
    path: str, base: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/the/hosts/home")  # `pct exec` brings the host's along
    assert expand(path, base) == expected


def test_a_runs_folder_is_there_whole_and_for_its_user_alone(state: StateFolder) -> None:
    spec = RunSpec(
        "train-a1", "train", "here", "true", on_oom=OnOom(["batch"], {"batch": 4}), policy={"nan_loss": "stop"}
    )
    filled: list[str] = []

    def fill(folder: RunFolder) -> None:
        assert not os.path.exists(state.run("train-a1").path), "still aside"
        filled.append(folder.path)

    folder, new = state.create_run(spec, fill)
    assert new and folder.path == os.path.join(state.runs, "train-a1")
    assert folder.spec() == spec
    assert [each.run for each in state.all_runs()] == ["train-a1"]
    for path in (state.path, state.runs, folder.path, folder.requests, folder.attempts):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    for path in (folder.spec_file, folder.lock):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    again, new = state.create_run(spec, lambda folder: pytest.fail("made twice"))
    assert not new and again.path == folder.path


def test_what_fails_half_way_leaves_nothing(state: StateFolder) -> None:
    def fill(folder: RunFolder) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        state.create_run(RunSpec("train-a1", "train", "here", "true"), fill)
    assert os.listdir(state.runs) == []


def test_of_two_callers_with_the_same_run_one_makes_it(state: StateFolder) -> None:
    spec = RunSpec("train-a1", "train", "here", "true")
    folder, new = state.create_run(spec, lambda aside: state.create_run(spec, lambda folder: None) and None)
    assert not new and folder.spec() == spec
    assert os.listdir(state.runs) == ["train-a1"]


@pytest.mark.parametrize("run", ["../../etc", "", ".hidden", "a b", "A", "-a", "a/b", "a\n", "é"])
def test_only_ids_name_a_run(state: StateFolder, run: str) -> None:
    with pytest.raises(Refusal) as refusal:
        state.run(run)
    assert refusal.value.code == 2


def test_no_such_run(state: StateFolder) -> None:
    with pytest.raises(Refusal) as refusal:
        state.existing("train-a1")
    assert refusal.value.code == 3 and "train-a1" in refusal.value.what


def test_a_state_folder_that_cannot_be_made_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal) as refusal:
        StateFolder(NodeSpec("n", state_dir=str(tmp_path / "file/state"))).ensure()
    assert refusal.value.code == 4 and str(tmp_path / "file") in refusal.value.what


def test_attempts_are_counted_by_their_folders(new_run: NewRun) -> None:
    folder = new_run()
    assert folder.attempt_numbers() == []
    for number in (10, 2, 1):
        folder.attempt(number).create()
    os.mkdir(os.path.join(folder.attempts, "2.not-started-1"))
    assert folder.attempt_numbers() == [1, 2, 10]
    assert folder.attempt(2).exit() is None
    write_json(folder.attempt(2).exit_file, {"exit_code": 0})
    assert folder.attempt(2).exit() == {"exit_code": 0}


def _hold(path: str, ready: object, done: object) -> None:
    try_lock(path)
    ready.set()  # type: ignore[attr-defined]
    done.wait()  # type: ignore[attr-defined]


def test_a_lock_is_seen_and_kept_by_one_and_freed_by_death(new_run: NewRun, lock_fds: list[int]) -> None:
    folder = new_run()
    assert not folder.supervised()
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=_hold, args=(folder.lock, ready, done))
    holder.start()
    assert ready.wait(20)
    assert folder.supervised()
    assert try_lock(folder.lock, patience_s=0) is None
    holder.kill()
    holder.join()
    assert not folder.supervised()
    fd = try_lock(folder.lock)
    assert fd is not None
    lock_fds.append(fd)


def test_a_look_at_the_lock_does_not_count_as_taken(tmp_path: Path, lock_fds: list[int]) -> None:
    import fcntl

    path = str(tmp_path / "lock")
    assert not locked(path), "no file, no holder"
    looker = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(looker, fcntl.LOCK_SH)
    assert not locked(path)
    import threading

    threading.Timer(0.03, os.close, [looker]).start()
    fd = try_lock(path, patience_s=5)
    assert fd is not None
    lock_fds.append(fd)


def test_json_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(str(path), {"a": 1})
    with pytest.raises(TypeError):
        write_json(str(path), {"a": object()})
    assert path.read_text() == '{"a": 1}\n'
    assert os.listdir(tmp_path) == ["x.json"]
