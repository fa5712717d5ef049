from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.journal import ROOM, DiskFull, Journal, Reader, last, outline, read


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.jsonl")


def test_events_are_numbered_and_carry_both_clocks(path: str) -> None:
    journal = Journal(path)
    journal.append("run_created", by="me")
    journal.append("attempt_started", 1, sync=True, pid=7, gpus=[0, 1])
    first, second = read(path)
    assert (first["seq"], first["type"], first["by"]) == (1, "run_created", "me")
    assert "attempt" not in first
    assert (second["seq"], second["attempt"], second["gpus"]) == (2, 1, [0, 1])
    assert second["time"].endswith("Z") and second["mono_s"] >= first["mono_s"] > 0


def test_read_after_gives_only_what_is_new(path: str) -> None:
    journal = Journal(path)
    for _ in range(5):
        journal.append("note")
    assert [event["seq"] for event in read(path, after=3)] == [4, 5]
    assert read(path, after=5) == []


def test_a_missing_journal_is_empty(path: str) -> None:
    assert read(path) == outline(path) == Reader(path).read() == []
    assert last(path) is None


def test_a_reader_stops_at_the_last_newline_and_goes_on_from_there(path: str) -> None:
    Journal(path).append("note")
    reader = Reader(path)
    assert len(reader.read()) == 1
    with open(path, "ab") as file:
        file.write(b'{"seq": 2, "type": "no')
        file.flush()
        assert reader.read() == []
        file.write(b'te"}\n')
    assert [event["seq"] for event in reader.read()] == [2]


def test_a_new_writer_cuts_off_the_torn_line_and_goes_on_counting(path: str) -> None:
    Journal(path).append("note", text="whole")
    with open(path, "ab") as file:
        file.write(b'{"seq": 2, "type": "torn')
    journal = Journal(path)
    assert journal.append("note", text="after")["seq"] == 2
    assert [event["text"] for event in read(path)] == ["whole", "after"]


def test_a_hole_of_nuls_hides_no_other_line(path: str) -> None:
    """What a power cut leaves on some file systems."""
    Journal(path).append("note")
    with open(path, "ab") as file:
        file.write(b"\0" * 100 + b"\n")
    journal = Journal(path)
    assert journal.append("note")["seq"] == 2
    assert [event["seq"] for event in read(path)] == [1, 2]


@pytest.mark.parametrize("text", ["two\nlines", "line\u2028separator", "\udcff not UTF-8", "\x1b[31m", "ünï", "\x85"])
def test_any_text_stays_one_line(path: str, text: str) -> None:
    Journal(path).append("note", text=text)
    assert [event["text"] for event in read(path)] == [text]


def test_outline_drops_only_the_progress_that_is_overtaken(path: str) -> None:
    journal = Journal(path)
    for done in (1, 2, 3):
        journal.append("progress", 1, done=done)
    journal.append("note", text='"type": "progress"')
    journal.append("progress", 1, done=4)
    assert [event.get("done", event["type"]) for event in outline(path)] == [3, "note", 4]


def test_last_finds_the_end_of_a_long_journal(path: str) -> None:
    journal = Journal(path)
    for _ in range(600):
        journal.append("note", text="x" * 300)
    assert os.path.getsize(path) > ROOM
    found = last(path)
    assert found is not None and found["seq"] == 600


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("can't mount a small file system here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 1024)
        except OSError:
            return filler


def test_a_full_disk_has_room_for_the_last_words_and_then_says_so(small_disk: Path) -> None:
    path = str(small_disk / "journal.jsonl")
    journal = Journal(path)
    journal.append("run_created")
    filler = _fill(small_disk)
    words = 0
    with pytest.raises(DiskFull):
        while True:
            journal.append("note", sync=True, text="y" * 200)
            words += 1
    assert journal.short_of_room
    assert words > 100
    assert len(read(path)) == words + 1, "what was refused left nothing behind"
    filler.unlink()
    assert journal.append("run_finished", state="failed")["seq"] == words + 2
    with open(path, "rb") as file:
        assert [json.loads(line)["seq"] for line in file] == list(range(1, words + 3))
