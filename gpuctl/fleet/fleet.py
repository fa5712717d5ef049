"""`Fleet`: the agents of an inventory's nodes, opened when first asked, one connection a node, closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from gpuctl.agent import Agent
from gpuctl.errors import DeadlinePassed, GpuctlError, Unreachable
from gpuctl.spec.inventory import Inventory, Node
from gpuctl.transport import open_transport

T = TypeVar("T")

_AT_ONCE = 32  # nodes asked at the same time
_CLOSING_S = 5.0  # a connection that does not close by then is left to the process's end


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What one node said: a value, or why there is none."""

    node: Node
    value: T | None = None
    error: GpuctlError | None = None


class Fleet:
    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._agents: dict[str, Agent] = {}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        closing = [asyncio.ensure_future(agent.transport.aclose()) for agent in self._agents.values()]
        if closing:
            _done, late = await asyncio.wait(closing, timeout=_CLOSING_S)
            for task in late:
                task.cancel()

    def agent(self, node: Node) -> Agent:
        """The node's agent; no connection is made before its first use."""
        if node.name not in self._agents:
            self._agents[node.name] = Agent(node, open_transport(node))
        return self._agents[node.name]

    async def asking(
        self, nodes: Iterable[Node], question: Callable[[Agent], Awaitable[T]], *, deadline_s: float | None = None
    ) -> AsyncIterator[Answer[T]]:
        """Every node's answer, in the order in which they come; a node's trouble is its answer.

        `deadline_s` is each node's own, so that one dead host delays no other. None: as long as it takes.
        """
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(node: Node) -> Answer[T]:
            async with turns:
                return await self._ask(node, question, deadline_s)

        asked = [asyncio.ensure_future(one(node)) for node in nodes]
        try:
            for next_one in asyncio.as_completed(asked):
                yield await next_one
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def ask(
        self, nodes: Iterable[Node], question: Callable[[Agent], Awaitable[T]], *, deadline_s: float | None = None
    ) -> list[Answer[T]]:
        """As `asking`, all of them, in the order of `nodes`."""
        nodes = list(nodes)
        answers = {answer.node.name: answer async for answer in self.asking(nodes, question, deadline_s=deadline_s)}
        return [answers[node.name] for node in nodes]

    async def _ask(self, node: Node, question: Callable[[Agent], Awaitable[T]], deadline_s: float | None) -> Answer[T]:
        try:
            async with asyncio.timeout(deadline_s):
                return Answer(node, value=await question(self.agent(node)))
        except GpuctlError as error:
            return Answer(node, error=error)
        except TimeoutError:
            late = DeadlinePassed(f"{node.name}: no answer within {deadline_s:g} s", f"try: gpuctl doctor {node.name}")
            return Answer(node, error=late)


def unreachable(answers: Iterable[Answer[T]]) -> list[GpuctlError]:
    return [answer.error for answer in answers if isinstance(answer.error, Unreachable)]
