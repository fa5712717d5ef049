from __future__ import annotations

import sqlite3
from pathlib import Path

from gpuctl.store import Store


def test_newest_is_the_last_launched_from_here(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    assert store.newest() is None
    store.launched("a-111111", "a", "n1")
    store.launched("b-222222", "b", "n2")
    newest = Store.open(tmp_path).newest()
    assert newest is not None
    assert (newest.run, newest.job, newest.node) == ("b-222222", "b", "n2")


def test_node_of_a_run_seen_but_launched_elsewhere(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.saw("n3", [{"run": "c-333333", "state": "running"}])
    assert store.node_of("c-333333") == "n3"
    assert store.node_of("c-3") is None
    assert store.runs_starting("c-") == ["c-333333"]
    store.forget("c-333333")
    assert store.node_of("c-333333") is None


def test_damaged_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"no database at all, but long enough to be read as one" * 40)
    store = Store.open(tmp_path)
    assert "damaged" in store.trouble
    store.launched("a-111111", "a", "n1")
    again = Store.open(tmp_path)
    assert again.trouble == ""
    assert again.node_of("a-111111") == "n1"
    assert [path.name for path in tmp_path.glob("*.damaged-*")]


def test_unusable_folder_only_means_that_nothing_is_kept(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = Store.open(blocked / "below")
    assert "can't be used" in store.trouble
    store.launched("a-111111", "a", "n1")
    assert store.node_of("a-111111") == "n1"


def test_a_newer_gpuctls_database_is_used_as_it_is(tmp_path: Path) -> None:
    Store.open(tmp_path).launched("a-111111", "a", "n1")
    db = sqlite3.connect(tmp_path / "store.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    assert Store.open(tmp_path).node_of("a-111111") == "n1"
