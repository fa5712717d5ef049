from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node.files import pack, unpack
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from tests.records.conftest import NewRun
from tests.records.reader import Reading
from tests.records.test_queries import STARTED

HOSTILE = ["plain", "with space", "new\nline", "'quote\"", "$HOME", "ünï", "-dash", os.fsdecode(b"not \xff utf-8")]


def packed(node: NodeSpec, **request: Any) -> tuple[bytes, dict[str, Any]]:
    """The tar stream, and what its sender says of it."""
    reading = Reading(lambda link: pack(node, request, link))
    *_, total = reading.join()
    return reading.text, total


def framed(data: bytes, size: int = 1000, **total: Any) -> io.BytesIO:
    """As the controller sends it, signs of life between."""
    stream = b""
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        stream += b"\n" + json.dumps({"chunk": len(piece)}).encode() + b"\n" + piece
    end = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), **total}
    return io.BytesIO(stream + json.dumps(end).encode() + b"\n")


def unpacked(node: NodeSpec, stream: io.BytesIO, path: Path | str, **request: Any) -> dict[str, Any]:
    (answer,) = Reading(lambda link: unpack(node, {"path": str(path), **request}, link, stream)).join()
    return dict(answer)


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in HOSTILE:
        (folder / "deep" / name).write_bytes(name.encode("utf-8", "surrogateescape") * 1000)
    (folder / "large").write_bytes(os.urandom(3 << 20))
    os.link(folder / "large", folder / "second name")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    os.utime(folder / "run.sh", (1_000_000_000, 1_000_000_000))
    (folder / "link").symlink_to("deep/plain")
    (folder / "nowhere").symlink_to("/does/not/exist")
    return folder


def assert_same(one: Path, other: Path) -> None:
    assert listing(one) == listing(other)
    for name in listing(one):
        left, right = one / name, other / name
        assert left.is_symlink() == right.is_symlink()
        if left.is_symlink():
            assert os.readlink(left) == os.readlink(right)
        elif left.is_dir():
            assert_same(left, right)
        else:
            assert left.read_bytes() == right.read_bytes()
            assert left.stat().st_mode == right.stat().st_mode
            assert int(left.stat().st_mtime) == int(right.stat().st_mtime)


def test_a_folder_arrives_as_it_was(node: NodeSpec, source: Path, tmp_path: Path) -> None:
    data, total = packed(node, path=str(source))
    assert total["sha256"] == hashlib.sha256(data).hexdigest() and total["bytes"] == len(data)
    (tmp_path / "there").mkdir()
    answer = unpacked(node, framed(data, 100_000), tmp_path / "there")
    assert (answer["sha256"], answer["files"]) == (total["sha256"], total["files"])
    assert_same(source, tmp_path / "there/source")
    assert listing(tmp_path / "there") == ["source"]


def test_a_new_name_for_a_folder_and_for_a_file(node: NodeSpec, source: Path, tmp_path: Path) -> None:
    unpacked(node, framed(packed(node, path=str(source))[0], 100_000), tmp_path / "copy")
    assert_same(source, tmp_path / "copy")
    unpacked(node, framed(packed(node, path=str(source / "run.sh"))[0]), tmp_path / "other.sh")
    assert (tmp_path / "other.sh").read_text() == "#!/bin/sh\n"


def test_a_file_takes_the_place_of_another_and_a_folder_is_filled(node: NodeSpec, tmp_path: Path) -> None:
    (tmp_path / "new/sub").mkdir(parents=True)
    (tmp_path / "new/sub/a").write_text("new")
    (tmp_path / "there/new/sub").mkdir(parents=True)
    (tmp_path / "there/new/sub/a").write_text("old")
    (tmp_path / "there/new/sub/b").write_text("stays")
    unpacked(node, framed(packed(node, path=str(tmp_path / "new"))[0]), tmp_path / "there")
    assert {path.name: path.read_text() for path in (tmp_path / "there/new/sub").iterdir()} == {
        "a": "new",
        "b": "stays",
    }


def test_in_and_out_of_a_runs_workdir(node: NodeSpec, new_run: NewRun, tmp_path: Path) -> None:
    (tmp_path / "work8").mkdir()
    (tmp_path / "work8/out").write_text("result")
    new_run("a-1", STARTED, workdir=f"{tmp_path}/work{{batch}}")
    data, _ = packed(node, run="a-1", path="out")
    unpacked(node, framed(data), "in", run="a-1")
    assert (tmp_path / "work8/in").read_text() == "result"


def test_what_is_no_file_is_skipped_and_said(node: NodeSpec, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder/pipe")
    _, total = packed(node, path=str(tmp_path / "folder"))
    assert (total["files"], total["skipped"]) == (0, [str(tmp_path / "folder/pipe")])
    with pytest.raises(Refusal, match="neither a file nor a folder") as refusal:
        packed(node, path=str(tmp_path / "folder/pipe"))
    assert refusal.value.code == 2


def test_sizes_and_numbers_are_of_the_files_alone(node: NodeSpec, tmp_path: Path) -> None:
    (tmp_path / "folder/sub").mkdir(parents=True)
    (tmp_path / "folder/none").write_bytes(b"")
    (tmp_path / "folder/sub/some").write_bytes(b"x" * 1234)
    (tmp_path / "folder/link").symlink_to("none")
    data, total = packed(node, path=str(tmp_path / "folder"))
    assert (total["files"], total["file_bytes"], total["bytes"]) == (3, 1234, len(data))
    (tmp_path / "there").mkdir()
    assert unpacked(node, framed(data), tmp_path / "there")["files"] == 3
    assert packed(node, path=str(tmp_path / "folder/none"))[1]["file_bytes"] == 0


def test_places_that_do_not_exist(node: NodeSpec, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="nothing") as refusal:
        packed(node, path=str(tmp_path / "nothing"))
    assert refusal.value.code == 3
    for path in (tmp_path / "no/such/folder/x", f"{tmp_path}/new/"):
        with pytest.raises(Refusal) as refusal:
            unpacked(node, framed(b""), path)
        assert refusal.value.code == 2


@pytest.mark.parametrize("fault", ["cut", "changed", "hash", "no end"])
def test_a_copy_that_did_not_arrive_whole_changes_nothing(node: NodeSpec, tmp_path: Path, fault: str) -> None:
    (tmp_path / "x").write_text("new" * 5000)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/x").write_text("old")
    data, _ = packed(node, path=str(tmp_path / "x"))
    stream = framed(data, sha256="0" * 64) if fault == "hash" else framed(data)
    raw = stream.getvalue()
    if fault == "cut":
        raw = raw[: len(raw) // 2]
    elif fault == "no end":
        raw = raw[: raw.rfind(b'{"sha256"')]
    elif fault == "changed":
        raw = raw.replace(b"newnew", b"nowhow", 1)
    with pytest.raises(Refusal):
        unpacked(node, io.BytesIO(raw), tmp_path / "there")
    assert listing(tmp_path / "there") == ["x"] and (tmp_path / "there/x").read_text() == "old"


def archive(*members: tuple[str, bytes, str]) -> bytes:
    """A tar with whatever names and types: (name, type, content or link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, type, content in members:
            member = tarfile.TarInfo(name)
            member.type = type
            if type == tarfile.REGTYPE:
                member.size = len(content)
            else:
                member.linkname = content
            tar.addfile(member, io.BytesIO(content.encode()) if type == tarfile.REGTYPE else None)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, "x")],
        [("/tmp/evil-absolute", tarfile.REGTYPE, "x")],
        [("a", tarfile.SYMTYPE, "{outside}"), ("a/evil", tarfile.REGTYPE, "x")],
        [("a/b", tarfile.SYMTYPE, ".."), ("a/b/../evil/x", tarfile.REGTYPE, "x"), ("a/b/c", tarfile.REGTYPE, "x")],
        [("fifo", tarfile.FIFOTYPE, "")],
        [("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [(".", tarfile.REGTYPE, "x")],
    ],
    ids=["up", "absolute", "through a link", "through an inner link", "pipe", "hard link", "itself"],
)
def test_an_archive_stays_where_it_was_sent(node: NodeSpec, tmp_path: Path, members: list[Any]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "there").mkdir()
    data = archive(*[(name, type, content.format(outside=outside)) for name, type, content in members])
    with pytest.raises(Refusal, match="no place here"):
        unpacked(node, framed(data), tmp_path / "there")
    assert listing(tmp_path / "there") == listing(outside) == []
    assert not os.path.exists("/tmp/evil-absolute") and not (tmp_path / "evil").exists()
