from __future__ import annotations

import glob
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.node.follower import Follower
from gpuctl.node.globs import matches

NAMES = ["a", "b", "run-1", "run 2", ".hidden", "out.log", "x.log", "[1]", "é"]
PARTS = ["**", "*", "*.log", "a", "run-?", ".*", "[ab]", "run*", "..", ".", "out.log", "[[]1]", "é", "**x", "nothing"]


@given(
    files=st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), max_size=12),
    patterns=st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), min_size=1, max_size=3),
    absolute=st.booleans(),
)
def test_without_links_it_finds_what_glob_finds(
    files: list[list[str]], patterns: list[list[str]], absolute: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="g[l]ob ") as made:
        folder = os.path.join(made, "w")
        os.mkdir(folder)
        for parts in files:
            path = os.path.join(folder, *parts)
            if not any(os.path.isfile(os.path.join(folder, *parts[:depth])) for depth in range(1, len(parts))):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if not os.path.isdir(path):
                    Path(path).touch()
        wanted = ["/".join(parts) for parts in patterns if ".." not in parts]
        found = {
            path
            for pattern in wanted
            for path in glob.iglob(os.path.join(glob.escape(folder), pattern), recursive=True)
            if os.path.isfile(path)
        }
        given = [os.path.join(glob.escape(folder), pattern) if absolute else pattern for pattern in wanted]
        assert matches(folder, given) == sorted(found)


def tree(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()


def names(folder: Path, *patterns: str, most: int = 1000) -> list[str]:
    return [os.path.relpath(path, folder) for path in matches(str(folder), patterns, most=most)]


def test_recursion_goes_into_no_linked_folder(tmp_path: Path) -> None:
    tree(tmp_path, "data/set/huge.log", "work/logs/a.log", "work/b.log")
    work = tmp_path / "work"
    (work / "up").symlink_to("..")
    (work / "logs" / "self").symlink_to(".")
    (work / "data").symlink_to(tmp_path / "data")
    (work / "link.log").symlink_to("b.log")
    assert names(work, "**/*.log") == ["b.log", "link.log", "logs/a.log"]
    assert names(work, "**") == ["b.log", "link.log", "logs/a.log"]


def test_a_link_that_is_named_or_met_by_a_star_is_followed(tmp_path: Path) -> None:
    tree(tmp_path, "data/set/huge.log", "data/c.log")
    work = tmp_path / "work"
    work.mkdir()
    (work / "outputs").symlink_to(tmp_path / "data")
    assert names(work, "outputs/*.log") == ["outputs/c.log"]
    assert names(work, "*/*.log") == ["outputs/c.log"]
    assert names(work, "outputs/**/*.log") == ["outputs/c.log", "outputs/set/huge.log"]


@pytest.mark.timeout(20)
def test_many_links_to_each_other_cost_nothing(tmp_path: Path) -> None:
    """Each folder has links to all others: followed, these would be 8^40 paths."""
    folders = [tmp_path / f"f{number}" for number in range(8)]
    for folder in folders:
        folder.mkdir()
    for folder in folders:
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    tree(tmp_path, "f3/a.log")
    assert names(tmp_path, "**/*.log") == ["f3/a.log"]
    assert names(tmp_path, "**/*.log", "**/to-*/**/*.log") == sorted(
        ["f3/a.log", *(f"{folder.name}/to-f3/a.log" for folder in folders)]
    )


def test_no_more_names_are_looked_at_than_it_may_and_the_shallow_ones_first(tmp_path: Path) -> None:
    tree(tmp_path, "top.log", *(f"deep/{number}/x/a.log" for number in range(50)))
    assert names(tmp_path, "**/*.log", "**/*.log", most=5) == ["top.log"]
    assert len(names(tmp_path, "**/*.log", most=100)) < 50
    assert len(names(tmp_path, "**/*.log", most=1000)) == 51


def test_what_takes_long_is_not_done_again_soon(tmp_path: Path) -> None:
    tree(tmp_path, *(f"{number // 100}/{number % 100}.txt" for number in range(3000)))
    follower = Follower()
    follower.add_globs(str(tmp_path), ["**/*.log"])
    began = time.process_time()
    follower.read()
    took = time.process_time() - began
    assert follower._scan_at - time.monotonic() > min(20.0, 20 * took)


def test_a_last_look_finds_what_came_since(tmp_path: Path) -> None:
    follower = Follower()
    follower.add_globs(str(tmp_path), ["**/*.log"])
    assert follower.read() == []
    tree(tmp_path, "new/a.log")
    (tmp_path / "new/a.log").write_text("text")
    assert [getattr(chunk, "data", None) for chunk in follower.read(scan=True)] == [b"text"]
