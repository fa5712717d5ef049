"""The program on the node unpacks itself once, and again where a power cut left it with less than it had written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuctl.bundle import build
from gpuctl.node import __main__ as entry
from tests.parts.node import TestNode


def unpacked(sim: TestNode) -> Path:
    return sim.archive.with_suffix("")


def empty_all(folder: Path) -> None:
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        os.truncate(path, 0)


def lose_the_mark(folder: Path) -> None:
    (folder / ".complete").unlink()
    empty_all(folder)


def lose_all(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)


@pytest.mark.parametrize("loss", [empty_all, lose_the_mark, lose_all])
def test_a_power_cut_that_left_empty_files_is_mended_by_the_next_call(
    sim: TestNode, loss: Callable[[Path], None]
) -> None:
    assert sim.ps() == {}
    folder = unpacked(sim)
    written = (folder / "gpuctl" / "node" / "verbs.py").stat()
    assert sim.ps() == {}
    assert (folder / "gpuctl" / "node" / "verbs.py").stat().st_ino == written.st_ino, "once"
    loss(folder)
    assert sim.ps() == {}
    assert (folder / "gpuctl" / "node" / "verbs.py").stat().st_size == written.st_size
    assert sorted(path.name for path in sim.archive.parent.iterdir()) == [folder.name, sim.archive.name]


def test_the_mark_is_made_once_all_else_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "digest.pyz"
    archive.write_bytes(build().data)
    on_disk: list[str] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        sync(fd)
        on_disk.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", noted)
    folder = Path(entry.unpacked(str(archive)))
    assert folder == tmp_path / "digest"
    *files, mark, parent = on_disk
    aside = Path(mark).parent
    assert (Path(mark).name, parent) == (".complete", str(tmp_path))
    assert {Path(path).relative_to(aside) for path in files} == {
        path.relative_to(folder) for path in (folder, *folder.rglob("*")) if path.name != ".complete"
    }


def test_where_it_can_not_be_unpacked_it_runs_from_the_zip(tmp_path: Path) -> None:
    archive = tmp_path / "digest.pyz"
    archive.write_bytes(build().data)
    (tmp_path / "digest").write_text("no folder")
    assert entry.unpacked(str(archive)) == str(archive)
    (tmp_path / "digest").unlink()
    (tmp_path / "digest").mkdir()
    (tmp_path / "digest").chmod(0o777)  # others could have put anything there
    assert entry.unpacked(str(archive)) == str(archive)
