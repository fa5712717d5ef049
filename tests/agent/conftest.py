"""Agents that call a small stand-in on the node instead of the real program."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuctl.agent import Agent
from gpuctl.bundle import Bundle
from gpuctl.bundle.build import zipped
from gpuctl.spec.inventory import Node
from gpuctl.transport import open_transport
from tests.parts.sshd import Sshd, running_sshd

STAND_IN = """
import json, os, sys, time
request = json.loads(sys.stdin.buffer.raw.readline())
def say(**answer):
    os.write(1, json.dumps(answer).encode() + b"\\n")
exec(request["program"])
if "keepalive" in request:
    say(end=True)
"""


def bundle_of(program: str = STAND_IN) -> Bundle:
    data = zipped({"__main__.py": program.encode()})
    return Bundle(data, hashlib.sha256(data).hexdigest())


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def local(tmp_path: Path) -> Node:
    return Node(
        name="gpu1",
        transport="local",
        state_dir=str(tmp_path / "state"),
        lock_dir=str(tmp_path / "locks"),
        keepalive=0.3,
    )


@pytest.fixture(params=["local", "asyncssh"])
def node(request: pytest.FixtureRequest, local: Node, sshd: Sshd, tmp_path: Path) -> Node:
    if request.param == "local":
        return local
    return sshd.node(state_dir=str(tmp_path / "state"), keepalive=0.3)


def with_agent(node: Node, story: Callable[[Agent], Awaitable[Any]], bundle: Bundle | None = None) -> Any:
    """What a test's story returns, told to an agent of the stand-in."""

    async def whole() -> Any:
        transport = open_transport(node)
        try:
            async with asyncio.timeout(60):
                return await story(Agent(node, transport, bundle or bundle_of()))
        finally:
            await transport.aclose()

    return asyncio.run(whole())
