from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuctl.node.follower import MOST_FILES, PIECE, Chunk, Follower, Mark, Truncated, standing


def text(follower: Follower) -> dict[str, bytes]:
    """All that is there to read now, by source; a truncation fails the test."""
    found: dict[str, bytes] = {}
    while pieces := follower.read():
        for piece in pieces:
            assert isinstance(piece, Chunk)
            found[piece.source] = found.get(piece.source, b"") + piece.data
    return found


def rescan(follower: Follower) -> None:
    """Globs are looked through once a second: here at once."""
    follower._scan_at = float("-inf")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_reads_on_from_where_it_stopped(log: Path) -> None:
    follower = Follower()
    follower.add(str(log), "log")
    assert follower.read() == [], "a file that does not exist yet is no error"
    log.write_bytes(b"one\n")
    assert follower.read() == [Chunk("log", 0, b"one\n")]
    with log.open("ab") as file:
        file.write(b"tw")
    assert follower.read() == [Chunk("log", 4, b"tw")]
    assert follower.read() == []


def test_a_large_file_comes_in_portions(log: Path) -> None:
    log.write_bytes(b"x" * (PIECE * 6 + 5))
    follower = Follower()
    follower.add(str(log), "log")
    assert sum(len(piece.data) for piece in follower.read() if isinstance(piece, Chunk)) == PIECE
    assert sum(map(len, text(follower).values())) == 5 * PIECE + 5


def test_a_leap_goes_on_near_the_end_and_says_what_it_left_out(log: Path) -> None:
    log.write_bytes(b"x" * 100 + b"last words")
    follower = Follower()
    follower.add(str(log), "log")
    follower.add(f"{log}.none", "none")
    assert follower.leap(10) == [], "it is not open yet"
    assert text(follower) == {"log": b"x" * 100 + b"last words"}
    with log.open("ab") as file:
        file.write(b"y" * 50 + b"more words")
    assert follower.leap(10) == [("log", 50)]
    assert text(follower) == {"log": b"more words"}


def test_a_rotated_file_is_read_to_its_end_then_the_new_one_from_its_start(log: Path) -> None:
    follower = Follower()
    follower.add(str(log), "log")
    log.write_bytes(b"old\n")
    assert text(follower) == {"log": b"old\n"}
    with log.open("ab") as writer:
        os.rename(log, f"{log}.1")
        writer.write(b"still old\n")
        writer.flush()
        assert text(follower) == {"log": b"still old\n"}, "whoever holds the old file may go on"
        writer.write(b"last\n")
    log.write_bytes(b"new\n")
    assert text(follower) == {"log": b"last\nnew\n"}


def test_a_rotated_file_is_not_read_again_under_its_new_name(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = Follower()
    follower.add_globs(str(tmp_path), ["log*"])
    log.write_bytes(b"old\n")
    assert text(follower) == {"log": b"old\n"}
    os.rename(log, f"{log}.1")
    log.write_bytes(b"new\n")
    for _ in range(3):
        rescan(follower)
        assert text(follower) in ({"log": b"new\n"}, {})
    with open(f"{log}.1", "ab") as file:
        file.write(b"late\n")
    assert text(follower) == {"log.1": b"late\n"}


@pytest.mark.parametrize("after", [b"new\n", b"new, and longer than what stood there before it was cut\n"])
def test_a_cut_file_is_said_and_read_from_its_start(log: Path, after: bytes) -> None:
    """Also where it has grown beyond the old size before anyone looked (copytruncate)."""
    log.write_bytes(b"the old text, read\n")
    follower = Follower()
    follower.add(str(log), "log")
    follower.read()
    log.write_bytes(after)  # the same inode
    assert follower.read() == [Truncated("log"), Chunk("log", 0, after)]


def test_a_writer_that_does_not_append_leaves_a_hole_that_is_skipped(log: Path) -> None:
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * 8192)
        follower = Follower()
        follower.add(str(log), "log")
        follower.read()
        os.truncate(log, 0)
        writer.write(b"new\n")
    truncated, chunk = follower.read()
    assert truncated == Truncated("log")
    assert isinstance(chunk, Chunk) and chunk.data.endswith(b"new\n") and len(chunk.data) <= 4096 + 4


def test_globs_find_files_that_appear_later_and_deeper(tmp_path: Path) -> None:
    follower = Follower()
    follower.add_globs(str(tmp_path), ["train.log", "ranks/**/*.log"])
    assert text(follower) == {}
    (tmp_path / "ranks/a/b").mkdir(parents=True)
    (tmp_path / "ranks/a/b/0.log").write_bytes(b"rank 0\n")
    (tmp_path / "train.log").write_bytes(b"step 1\n")
    (tmp_path / "other.log").write_bytes(b"no\n")
    rescan(follower)
    assert text(follower) == {"ranks/a/b/0.log": b"rank 0\n", "train.log": b"step 1\n"}


def test_a_folder_with_glob_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run [1]*"
    folder.mkdir()
    (folder / "a.log").write_bytes(b"a")
    follower = Follower()
    follower.add_globs(str(folder), ["*.log"])
    assert text(follower) == {"a.log": b"a"}


def test_what_stood_there_before_the_attempt_is_not_this_ones(tmp_path: Path) -> None:
    (tmp_path / "appended.log").write_bytes(b"CUDA out of memory, yesterday\n")
    (tmp_path / "rewritten.log").write_bytes(b"yesterday\n")
    marks = standing(str(tmp_path), ["*.log"])
    marks = {path: Mark.from_json(mark.to_json()) for path, mark in marks.items()}  # a new supervisor reads them
    with (tmp_path / "appended.log").open("ab") as file:
        file.write(b"today\n")
    (tmp_path / "rewritten.log").write_bytes(b"today, longer than yesterday\n")
    follower = Follower()
    follower.add_globs(str(tmp_path), ["*.log"], marks)
    assert text(follower) == {"appended.log": b"today\n", "rewritten.log": b"today, longer than yesterday\n"}


def test_the_same_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"once\n")
    os.symlink(tmp_path / "a.log", tmp_path / "b.log")
    follower = Follower()
    follower.add_globs(str(tmp_path), ["*.log"])
    follower.add(str(tmp_path / "a.log"), "log")
    assert text(follower) == {"log": b"once\n"}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    os.symlink("nowhere", tmp_path / "broken.log")
    follower = Follower()
    follower.add_globs(str(tmp_path), ["*.log"])
    follower.add(str(tmp_path / "pipe.log"), "pipe")
    assert text(follower) == {}


def test_thousands_of_files_do_not_eat_all_descriptors(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 7):
        (tmp_path / f"{number}.log").write_bytes(b"x")
    follower = Follower()
    follower.add_globs(str(tmp_path), ["*.log"])
    assert len(text(follower)) == MOST_FILES
    follower.close()


def test_a_mark_is_where_a_follower_begins(log: Path) -> None:
    log.write_bytes(b"read\n")
    (mark,) = standing(str(log.parent), [log.name]).values()
    with log.open("ab") as file:
        file.write(b"unread\n")
    second = Follower()
    second.add(str(log), "log", mark)
    assert second.read() == [Chunk("log", 5, b"unread\n")]
