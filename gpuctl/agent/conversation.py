"""One call of a verb: its request goes in, its answers come out, heartbeats go both ways, and it always ends.

A verb that follows something ends at the end of its standard input, or when our heartbeat stays away; we take silence
of three of its heartbeats for a lost connection. So neither side outlives a cut one, not even where nothing tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from gpuctl.agent.framing import Chunk, Framing
from gpuctl.errors import BY_EXIT_CODE, ConnectionLost, DeadlinePassed, GpuctlError, NodeUnfit
from gpuctl.transport import Process
from gpuctl.wire import END

STDERR_KEPT = 64 * 1024
HANDSHAKE_S = 30


class BundleMissing(Exception):
    """The node has no such bundle. Never leaves the agent, which sends it and calls again."""


class Conversation:
    """Between `begin()` and `end()`, `next()` gives answers, without heartbeats, until None.

    `keepalive` None is for verbs that answer once: their caller sets a deadline, and no heartbeat goes either way. With
    it the verb's last answer is `END`: output that ends without that is a lost connection, such as that of a controller
    which slept so long that the node gave it up.
    `silent` verbs hear our heartbeat but send none.
    """

    def __init__(
        self,
        process: Process,
        request: dict[str, Any],
        *,
        where: str,
        verb: str,
        keepalive: float | None = None,
        silent: bool = False,
    ) -> None:
        self.process = process
        self._request, self._where, self._verb, self._keepalive = request, where, verb, keepalive
        self._silence_s = None if keepalive is None or silent else 3 * keepalive
        self._framing = Framing(self._read, where)
        self._stderr = bytearray()
        self._complete = keepalive is None
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Raises `BundleMissing`, and whatever keeps the verb from being called at all."""
        self._tasks.append(asyncio.create_task(self._read_stderr()))
        try:
            await self.process.write(json.dumps(self._request).encode("ascii") + b"\n")
            async with asyncio.timeout(HANDSHAKE_S):
                await self._shake_hands()
        except TimeoutError:
            await self.end()
            raise DeadlinePassed(
                f"{self._where}: its Python did not answer within {HANDSHAKE_S} s",
                "The machine may be overloaded or its home folder out of reach; try again.",
            ) from None
        except BaseException:
            await self.end()
            raise
        if self._keepalive is not None:
            self._tasks.append(asyncio.create_task(self._beat(self._keepalive)))

    async def end(self) -> None:
        """Whatever its state: nothing of it runs on, here or there."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.process.kill()

    async def next(self) -> dict[str, Any] | Chunk | None:
        """The next answer; None where the verb has ended well. Raises what it answers as an error."""
        while True:
            answer = await self._framing.next()
            if answer is None:
                await self._expect_success()
            elif isinstance(answer, dict):
                self._complete = self._complete or answer == END
                if "heartbeat" in answer or answer == END:
                    continue
                if isinstance(answer.get("error"), dict):
                    raise as_error(answer["error"], self._where)
            return answer

    async def _shake_hands(self) -> None:
        if not await self._framing.open():
            raise await self._speechless()
        standing = await self._framing.next()
        if not isinstance(standing, dict) or not standing.keys() & {"found", "missing", "old"}:
            raise await self._speechless()
        if "missing" in standing:
            raise BundleMissing
        if "old" in standing:
            raise NodeUnfit(
                f"{self._where}: Python {standing['old']} is too old",
                "gpuctl needs Python 3.8 or newer there: name one by `python:` in the inventory.",
            )

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                return await self.process.read()
        except TimeoutError:
            raise ConnectionLost(
                f"{self._where}: nothing heard for {self._silence_s:g} s",
                "What runs there goes on. Look at the network and the machine, then ask again.",
            ) from None

    async def _beat(self, keepalive: float) -> None:
        with contextlib.suppress(ConnectionLost):  # the reader says so
            while True:
                await asyncio.sleep(keepalive)
                await self.process.write(b"\n")

    async def _read_stderr(self) -> None:
        with contextlib.suppress(ConnectionLost):
            while part := await self.process.read_stderr():
                self._stderr += part
                del self._stderr[:-STDERR_KEPT]

    async def _expect_success(self) -> None:
        exit_code = await self.process.wait()
        if exit_code:
            raise self._broken(exit_code)
        if not self._complete:
            raise ConnectionLost(
                f"{self._where}: it ended the stream in between: it had not heard from here for long",
                "What runs there goes on; ask again.",
            )

    async def _speechless(self) -> GpuctlError:
        """Why Python never spoke: there is none, or the node's shell did not get that far."""
        exit_code = await self.process.wait()
        await asyncio.wait(self._tasks, timeout=1)  # its last words are still on their way
        if exit_code in (126, 127):
            return NodeUnfit(
                f"{self._where}: no usable Python there: {self._last_words()}",
                "Install Python 3.8 or newer, or name one by `python:` in the inventory.",
            )
        return self._broken(exit_code)

    def _broken(self, exit_code: int) -> GpuctlError:
        return NodeUnfit(
            f"{self._where}: the agent failed at {self._verb!r} with exit code {exit_code}: {self._last_words()}",
            "This is a fault of gpuctl or of the node; `gpuctl doctor` tells more.",
        )

    def _last_words(self) -> str:
        said = bytes(self._stderr) or self._framing.noise
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else "it said nothing"


def as_error(answer: dict[str, Any], where: str) -> GpuctlError:
    """The error that a node answered, as one of ours; its exit code names the class."""
    code = answer.get("code")
    kind = BY_EXIT_CODE.get(code, GpuctlError) if isinstance(code, int) else GpuctlError
    return kind(f"{where}: {answer.get('what', 'it failed and did not say why')}", str(answer.get("hint", "")))
