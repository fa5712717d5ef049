"""Takes what a verb prints apart: JSON lines, and chunks of raw bytes that a line announces.

Nothing that a node prints is trusted: a line has a longest length, a chunk too, and what is not JSON is an error that
shows where it went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gpuctl.agent.boot import PREAMBLE
from gpuctl.errors import NodeUnfit

MAX_LINE = 16 * 1024 * 1024  # a `ps` of thousands of runs is a few MiB
MAX_CHUNK = 64 * 1024 * 1024
MAX_NOISE = 256 * 1024  # what login scripts may print before us


@dataclass(frozen=True)
class Chunk:
    """Raw bytes of a file on the node, and the line that announced them: `attempt`, `offset`, … ."""

    data: bytes
    about: dict[str, Any]

    @property
    def offset(self) -> int:
        """In the file, of the first byte."""
        offset: int = self.about.get("offset") or 0
        return offset

    @property
    def attempt(self) -> int | None:
        attempt: int | None = self.about.get("attempt")
        return attempt


class Framing:
    """Reads from `read`, which gives some bytes, and none at the end."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], where: str) -> None:
        self._read, self._where = read, where
        self._buffer = bytearray()
        self._scanned = 0  # of the buffer, without a newline
        self.noise = b""  # what came before the preamble

    async def open(self) -> bool:
        """Past the preamble. False where the output ended without one."""
        while (start := self._buffer.find(PREAMBLE)) < 0:
            if len(self._buffer) > MAX_NOISE or not await self._more():
                self.noise = bytes(self._buffer)
                return False
        self.noise = bytes(self._buffer[:start])
        del self._buffer[: start + len(PREAMBLE)]
        return True

    async def next(self) -> dict[str, Any] | Chunk | None:
        """The next answer; None at the end."""
        line = await self._line()
        if line is None:
            return None
        answer = self._parsed(line)
        if "chunk" not in answer:
            return answer
        size = answer["chunk"]
        if not isinstance(size, int) or not 0 <= size <= MAX_CHUNK or not _places(answer):
            raise self._garbled(line)
        return Chunk(await self._exactly(size), answer)

    async def _line(self) -> bytes | None:
        while (end := self._buffer.find(b"\n", self._scanned)) < 0:
            self._scanned = len(self._buffer)
            if self._scanned > MAX_LINE:
                raise self._garbled(bytes(self._buffer[:200]))
            if not await self._more():
                if self._buffer:
                    raise self._garbled(bytes(self._buffer[:200]))
                return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        return line

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not await self._more():
                raise self._garbled(bytes(self._buffer[:200]))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _more(self) -> bool:
        part = await self._read()
        self._buffer += part
        return bool(part)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise self._garbled(line) from None
        if not isinstance(answer, dict):
            raise self._garbled(line)
        return answer

    def _garbled(self, seen: bytes) -> NodeUnfit:
        shown = seen[:200].decode("ascii", errors="backslashreplace")
        return NodeUnfit(
            f"{self._where}: the agent's answer can't be read: {shown!r}",
            "Something else writes to its output, or it ended in mid-answer; `gpuctl doctor` tells more.",
        )


def _places(about: dict[str, Any]) -> bool:
    """Whether a chunk's line says where it belongs, where it says that at all."""
    return all(isinstance(about.get(key), int | None) for key in ("offset", "attempt"))
