"""Files and folders from one place to another: verb `pack` on one node, `unpack` on the other, their bytes between.

This machine is a node like any other (a `local` one), so that there is one way to copy and no second tar on this side.
What arrives takes its place only once both ends and we, in between, have counted the same SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuctl.agent.agent import Agent
from gpuctl.agent.conversation import Conversation
from gpuctl.agent.framing import Chunk
from gpuctl.errors import GpuctlError, NodeUnfit
from gpuctl.transport.base import one_error


@dataclass(frozen=True)
class Place:
    """A path on a node: as it is, or below the home folder there; with `run` below that run's workdir."""

    agent: Agent
    path: str
    run: str | None = None


@dataclass(frozen=True)
class Copied:
    files: int  # folders are none
    file_bytes: int  # what is in them
    sent_bytes: int  # of the tar stream
    skipped: list[str]  # sockets, devices and the like


async def copy(source: Place, target: Place, *, told: Callable[[int], None] = lambda _bytes: None) -> Copied:
    """`told` hears how many bytes have passed.

    Raises unless all has arrived, but for what is `skipped`. The target is then as it was; where only the last answer
    was lost, it has the whole copy.
    """
    keepalive = min(float(place.agent.node.keepalive) for place in (source, target))
    pack = source.agent.open("pack", keepalive=keepalive, silent=True, path=source.path, run=source.run)
    unpack = target.agent.open("unpack", keepalive=keepalive, silent=True, path=target.path, run=target.run)
    async with pack as packing, unpack as unpacking, one_error(), asyncio.TaskGroup() as group:
        # Side by side: what the target answers early is why it will not take the rest.
        passing = group.create_task(_pass_on(packing, unpacking, told))
        taking = group.create_task(_answer(unpacking, target))
    sent, taken = passing.result(), taking.result()
    if sent.get("sha256") != taken.get("sha256"):
        raise GpuctlError(f"{target.agent.transport.where}: what arrived is not what was sent", "Copy it again.")
    skipped = [str(path) for path in sent["skipped"]]
    return Copied(int(taken.get("files", 0)), int(sent.get("file_bytes", 0)), int(sent.get("bytes", 0)), skipped)


async def _pass_on(packing: Conversation, unpacking: Conversation, told: Callable[[int], None]) -> dict[str, Any]:
    """Each chunk in one write: a heartbeat may come between two, never within one."""
    passed, seen = 0, hashlib.sha256()
    while isinstance(item := await packing.next(), Chunk):
        await unpacking.process.write(json.dumps({"chunk": len(item.data)}).encode("ascii") + b"\n" + item.data)
        seen.update(item.data)
        passed += len(item.data)
        told(passed)
    if item is None or item.get("sha256") != seen.hexdigest():
        raise GpuctlError("what was read is not what was sent: it was damaged on the way", "Copy it again.")
    await unpacking.process.write(json.dumps(item).encode("ascii") + b"\n")
    return item


async def _answer(unpacking: Conversation, target: Place) -> dict[str, Any]:
    answer = await unpacking.next()
    if not isinstance(answer, dict):
        raise NodeUnfit(f"{target.agent.transport.where}: the copy was not confirmed", "Copy it again.")
    return answer
