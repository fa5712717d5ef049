"""Copies between nodes, by the node's own `pack` and `unpack`."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gpuctl.agent import Agent
from gpuctl.agent.copying import Copied, Place, copy
from gpuctl.bundle import Bundle
from gpuctl.bundle.build import shipped_files, zipped
from gpuctl.errors import GpuctlError, NotFound
from gpuctl.spec.inventory import Node
from gpuctl.transport import open_transport

# The two verbs alone, so that nothing else of the node's program can fail here.
ENTRY = """
import json, sys
request = json.loads(sys.stdin.buffer.raw.readline())
from gpuctl.node import files
from gpuctl.node.link import Link
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
try:
    link = Link(request["keepalive"])
    getattr(files, sys.argv[1])(NodeSpec.from_json(request["node"]), request, link)
    link.end()
except Refusal as refusal:
    print(json.dumps(refusal.to_json()), flush=True)
    sys.exit(refusal.code)
"""


@functools.cache
def bundle() -> Bundle:
    members = {name: path.read_bytes() for name, path in shipped_files()}
    data = zipped({**members, "__main__.py": ENTRY.encode()})
    return Bundle(data, hashlib.sha256(data).hexdigest())


def copied(source: tuple[Node, Path | str], target: tuple[Node, Path | str]) -> tuple[Copied, list[int]]:
    heard: list[int] = []

    async def story() -> Copied:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            places = []
            for node, path in (source, target):
                transport = open_transport(node)
                stack.push_async_callback(transport.aclose)
                places.append(Place(Agent(node, transport, bundle()), str(path)))
            return await copy(*places, told=heard.append)

    return asyncio.run(story()), heard


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "from here"
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "big").write_bytes(os.urandom(5_000_000))
    (top / "sub" / "it's; $a\nname").write_text("hostile")
    (top / "run").write_text("#!/bin/sh\n")
    (top / "run").chmod(0o755)
    (top / "link").symlink_to("big")
    os.mkfifo(top / "pipe")
    return top


def test_a_folder_from_node_to_node(node: Node, local: Node, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    done, heard = copied((node, tree), (local, tmp_path / "to"))
    there = tmp_path / "to" / "from here"
    assert (there / "big").read_bytes() == (tree / "big").read_bytes()
    assert (there / "sub" / "it's; $a\nname").read_text() == "hostile"
    assert (there / "sub" / "empty").is_dir()
    assert (there / "run").stat().st_mode & 0o777 == 0o755
    assert os.readlink(there / "link") == "big"
    assert done.skipped == [str(tree / "pipe")] and not (there / "pipe").exists()
    assert heard == sorted(heard) and heard[-1] == done.sent_bytes > 5_000_000


def test_a_file_to_a_name(node: Node, local: Node, tree: Path, tmp_path: Path) -> None:
    done, _ = copied((local, tree / "big"), (node, tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == (tree / "big").read_bytes()
    assert done.files == 1


def test_what_is_not_there(node: Node, local: Node, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        copied((node, tmp_path / "none"), (local, tmp_path))


def test_a_target_that_can_not_take_it_leaves_nothing(node: Node, local: Node, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(GpuctlError, match="does not exist"):
        copied((local, tree), (node, tmp_path / "no" / "such" / "folder"))
    assert not (tmp_path / "no").exists()
