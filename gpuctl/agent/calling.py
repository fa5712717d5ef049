"""How any verb is called: the bundle is found or sent, the request goes in, answers come out, all within deadlines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gpuctl.agent.boot import BOOT, RECEIVE
from gpuctl.agent.conversation import BundleMissing, Conversation, as_error
from gpuctl.agent.framing import Chunk, Framing
from gpuctl.bundle import Bundle, build
from gpuctl.errors import DeadlinePassed, NodeUnfit
from gpuctl.transport import Transport, run
from gpuctl.wire import VERSION

if TYPE_CHECKING:
    from gpuctl.spec.inventory import Node

SEND_S = 300.0
CALL_S = 60.0


class Caller:
    """Calls verbs by name. `Agent` gives them their types."""

    def __init__(self, node: Node, transport: Transport, bundle: Bundle | None = None) -> None:
        self.node, self.transport = node, transport
        self._bundle = bundle
        self._sending = asyncio.Lock()
        self._sent = 0  # how often: a bundle may be removed while we live
        self.reached = False  # whether a process was ever started there: before that, nothing can have been asked

    @property
    def bundle(self) -> Bundle:
        """Built at the first call, not before: a command that fails earlier need not wait for it."""
        if self._bundle is None:
            self._bundle = build()
        return self._bundle

    @property
    def python(self) -> str:
        """On this machine itself, what we run on is surely there."""
        if self.node.python is not None:
            return self.node.python
        here = self.node.transport == "local" and self.node.container is None
        return sys.executable if here else "python3"

    async def call(self, verb: str, *, deadline_s: float = CALL_S, **arguments: Any) -> dict[str, Any]:
        """The one answer of a verb that answers once."""
        async with self._within(deadline_s, verb), self.open(verb, **arguments) as conversation:
            answer = await conversation.next()
            if not isinstance(answer, dict):
                raise NodeUnfit(
                    f"{self.transport.where}: {verb!r} was not answered", "`gpuctl doctor` tells what is wrong there."
                )
            await conversation.next()  # its end: an exit code other than 0 is an error even after an answer
            return answer

    async def stream(self, verb: str, **arguments: Any) -> AsyncGenerator[dict[str, Any] | Chunk]:
        """The answers of a verb that follows something, until it ends. Close it (`aclosing`) where you stop early."""
        keepalive = float(self.node.keepalive)
        async with self.open(verb, keepalive=keepalive, **arguments) as conversation:
            while (answer := await conversation.next()) is not None:
                yield answer

    @asynccontextmanager
    async def open(
        self, verb: str, *, keepalive: float | None = None, silent: bool = False, **arguments: Any
    ) -> AsyncIterator[Conversation]:
        """A verb's conversation, after its handshake; the bundle is sent first where the node lacks it."""
        request = {"version": VERSION, "node": self.node.spec().to_json(), **arguments}
        if keepalive is not None:
            request["keepalive"] = keepalive

        async def begin() -> Conversation:
            argv = [self.python, "-IS", "-c", BOOT, self.node.spec().state_dir, self.bundle.digest, verb]
            process = await self.transport.start(argv)
            self.reached = True
            where = self.transport.where
            begun = Conversation(process, request, where=where, verb=verb, keepalive=keepalive, silent=silent)
            await begun.begin()
            return begun

        conversation = await self._with_bundle(begin)
        try:
            yield conversation
        finally:
            await conversation.end()

    async def _with_bundle(self, begin: Callable[[], Awaitable[Conversation]]) -> Conversation:
        sent_before = self._sent
        try:
            return await begin()
        except BundleMissing:
            await self._send_bundle(sent_before)
        try:
            return await begin()
        except BundleMissing:
            raise NodeUnfit(
                f"{self.transport.where}: the agent was sent, but is not there, or others can write to it",
                f"Look at {self.node.spec().state_dir}/agent there: it must be yours, and writable only by you.",
            ) from None

    async def _send_bundle(self, sent_before: int) -> None:
        """Once, however many calls find it missing at the same time."""
        async with self._sending:
            if self._sent > sent_before:
                return
            argv = [self.python, "-IS", "-c", RECEIVE, self.node.spec().state_dir, self.bundle.digest]
            done = await run(self.transport, argv, stdin=self.bundle.data, deadline_s=SEND_S)
            await self._expect_received(done.stdout, done.stderr)
            self._sent += 1

    async def _expect_received(self, stdout: bytes, stderr: bytes) -> None:
        parts = iter([stdout])
        framing = Framing(lambda: _given(next(parts, b"")), self.transport.where)
        answer = await framing.next() if await framing.open() else None
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            raise as_error(answer["error"], self.transport.where)
        if not isinstance(answer, dict) or "received" not in answer:
            said = stderr.decode(errors="replace").strip().splitlines()
            raise NodeUnfit(
                f"{self.transport.where}: the agent could not be sent: {said[-1] if said else 'no answer'}",
                "Look at that machine's disk and at its state_dir.",
            )

    @asynccontextmanager
    async def _within(self, deadline_s: float, verb: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError:
            raise DeadlinePassed(
                f"{self.transport.where}: no answer to {verb!r} within {deadline_s:g} s",
                "It may still have been done there: `gpuctl ps` shows it.",
            ) from None


async def _given(data: bytes) -> bytes:
    return data
