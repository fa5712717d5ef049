"""Following a run from afar: over lost connections, without losing or repeating an event or a byte.

The node's stream ends when the run has ended, so the only way in which a stream breaks is the connection; it is then
taken up again where it stopped, for as long as the caller wants to know.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from gpuctl.agent import Agent, Chunk
from gpuctl.errors import AuthRefused, ConnectionLost, HostKeyChanged, HostKeyUnknown, NodeUnfit, Unreachable
from gpuctl.wire.requests import Request

T = TypeVar("T")

_LONGEST_PAUSE_S = 15.0
_HOPELESS = (AuthRefused, HostKeyChanged, HostKeyUnknown, NodeUnfit)  # trying again changes none of these

Told = Callable[[str], None]
"""How a person hears of a lost connection."""


async def follow_events(
    agent: Agent, run: str, *, after: int = 0, follow: bool = True, lost: Told
) -> AsyncGenerator[dict[str, Any]]:
    """The journal's events after `after`; with `follow` until the run has ended."""
    seen = after

    def begin() -> AsyncGenerator[dict[str, Any]]:
        return agent.events(run, after=seen, follow=follow)

    async with aclosing(_resumed(begin, lost) if follow else begin()) as events:
        async for event in events:
            if event["seq"] > seen:
                seen = event["seq"]
                yield event


async def follow_request(
    agent: Agent, run: str, request: Request, *, secrets: Mapping[str, str] | None = None, lost: Told
) -> AsyncGenerator[dict[str, Any]]:
    """Asks for it, yields the journal's events until it has been done. Asked again, the same id is the same request."""
    seen = 0
    async with aclosing(_resumed(lambda: agent.request(run, request, secrets=secrets), lost)) as events:
        async for event in events:
            if event["seq"] > seen:
                seen = event["seq"]
                yield event


async def follow_log(
    agent: Agent,
    run: str,
    *,
    attempt: int | None = None,
    file: str | None = None,
    lines: int | None = None,
    follow: bool = True,
    lost: Told,
) -> AsyncGenerator[Chunk]:
    """The log's bytes, each once; with `follow` over all later attempts, or to `attempt`'s end where one is named."""
    at: Chunk | None = None

    def begin() -> AsyncGenerator[Chunk]:
        if at is None:
            return agent.log(run, attempt=attempt, file=file, offset=None, lines=lines, follow=follow)
        end = at.offset + len(at.data)
        return agent.log(run, attempt=at.attempt, file=file, offset=end, lines=None, follow=follow)

    async with aclosing(_resumed(begin, lost) if follow else begin()) as chunks:
        async for chunk in chunks:
            if attempt is not None and chunk.attempt != attempt:
                return
            at = chunk
            yield chunk


async def _resumed(begin: Callable[[], AsyncGenerator[T]], lost: Told) -> AsyncGenerator[T]:
    """What `begin()` yields, begun again whenever the connection is lost. A first contact that fails is an error."""
    reached = False
    pauses = _pauses()
    while True:
        try:
            async with aclosing(begin()) as items:
                async for item in items:
                    reached, pauses = True, _pauses()
                    yield item
            return
        except _HOPELESS:
            raise
        except Unreachable as error:
            if not (reached or isinstance(error, ConnectionLost)):
                raise
            reached = True
            lost(error.what)
        await asyncio.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    """Longer and longer, with jitter, so that many followers of a node that comes back do not meet at its door."""
    longest = 0.2
    while True:
        yield random.uniform(longest / 2, longest)  # noqa: S311 - jitter, no secret
        longest = min(longest * 2, _LONGEST_PAUSE_S)
