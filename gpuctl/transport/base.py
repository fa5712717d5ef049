"""The boundary: a transport starts argv on a node and hands back a process; `run` is a function above that.

What every implementation promises, and tests/transport/test_contract.py checks on each of them: argv arrives as sent
(spaces, quotes, newlines, `$`, an empty word); standard input can be ended; exit codes are a shell's (126 can't be
executed, 127 not found, 128 + n ended by signal n); whatever the library raises leaves as a `gpuctl.errors` error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from gpuctl.errors import CommandOverdue, DeadlinePassed, GpuctlError, UsageError

READ_SIZE = 256 * 1024


@dataclass(frozen=True)
class Terminal:
    """The terminal that a process is to be given: its kind, and its size in characters."""

    kind: str
    columns: int
    rows: int


@dataclass(frozen=True)
class Completed:
    """A process that has ended. `exit_code` is a shell's: 128 + n where signal n ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Process(Protocol):
    """A process on the node. Bytes in, bytes out; every call raises `ConnectionLost` once the node can't be reached."""

    async def write(self, data: bytes) -> None:
        """To its standard input; waits while that is full. What it no longer reads vanishes: its exit says why."""

    async def close_stdin(self) -> None: ...

    async def read(self, limit: int = READ_SIZE) -> bytes:
        """Some bytes of its standard output, as soon as there are any; none at the end."""

    async def read_stderr(self, limit: int = READ_SIZE) -> bytes: ...

    async def wait(self) -> int:
        """Its exit code. Its output must be read meanwhile, or a full pipe may keep it from ending."""

    async def kill(self) -> None:
        """SIGKILL, and an end to all waiting for it. No error where it has ended already."""

    async def resize(self, columns: int, rows: int) -> None:
        """Of the terminal that it was started with."""


class Transport(Protocol):
    """A way to one node. Connects at the first `start`, and again at a later one if the connection was lost."""

    @property
    def where(self) -> str:
        """What it leads to, for messages: the node's name, and its address where there is one."""

    async def start(self, argv: Sequence[str], *, terminal: Terminal | None = None) -> Process: ...

    async def aclose(self) -> None: ...


async def run(transport: Transport, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Completed:
    """Start, feed, read to the end. Raises `DeadlinePassed` where it does not even start in time, `CommandOverdue`,
    after ending the process, where that does not end."""
    process: Process | None = None
    stdout, stderr = bytearray(), bytearray()
    try:
        async with one_error(), asyncio.timeout(deadline_s):
            process = await transport.start(argv)
            async with asyncio.TaskGroup() as group:
                group.create_task(_feed(process, stdin))
                group.create_task(_collect(process.read, stdout))
                group.create_task(_collect(process.read_stderr, stderr))
            return Completed(await process.wait(), bytes(stdout), bytes(stderr))
    except TimeoutError:
        if process is None:
            raise DeadlinePassed(
                f"{transport.where}: {argv[0]} could not be started within {deadline_s:g} s", "Try again."
            ) from None
        raise CommandOverdue(
            f"{transport.where}: {argv[0]} did not end within {deadline_s:g} s",
            "It was ended; try again.",
            stdout=bytes(stdout),
            stderr=bytes(stderr),
        ) from None
    finally:
        if process is not None:
            await process.kill()


async def put(transport: Transport, data: bytes, path: str, *, deadline_s: float) -> None:
    """Write a file on the node: aside, then renamed into place, so that no reader sees half of it."""
    script = 'cat > "$1.part" && mv -f -- "$1.part" "$1"'
    _expect_success(
        transport, await run(transport, ["sh", "-c", script, "put", path], stdin=data, deadline_s=deadline_s)
    )


async def get(transport: Transport, path: str, *, deadline_s: float) -> bytes:
    """A file's bytes."""
    done = await run(transport, ["sh", "-c", 'exec cat < "$1"', "get", path], deadline_s=deadline_s)
    _expect_success(transport, done)
    return done.stdout


@asynccontextmanager
async def one_error() -> AsyncIterator[None]:
    """Around a task group whose tasks share one fate: the first error leaves alone, not in a group of one."""
    try:
        yield
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def checked(argv: Sequence[str]) -> list[str]:
    """argv as a list, refused where no system could pass it on."""
    if not argv or any("\0" in word for word in argv):
        raise UsageError(
            "a command is at least one word, and none holds a NUL byte", "Take the NUL out, or pass it in a file."
        )
    return list(argv)


async def _feed(process: Process, data: bytes) -> None:
    for start in range(0, len(data), READ_SIZE):
        await process.write(data[start : start + READ_SIZE])
    await process.close_stdin()


async def _collect(read: Callable[[], Awaitable[bytes]], into: bytearray) -> None:
    while part := await read():
        into += part


def _expect_success(transport: Transport, done: Completed) -> None:
    if done.exit_code:
        reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
        raise GpuctlError(f"{transport.where}: {reason}")
