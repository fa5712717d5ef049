"""The default transport: asyncssh, one connection a node with several channels on it, opened again when it was lost.

This is the one place where argv becomes a command string, because an SSH channel carries nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import asyncssh

from gpuctl.errors import ConnectionLost, Unreachable
from gpuctl.transport.base import READ_SIZE, Process, Terminal, checked
from gpuctl.transport.connecting import Connection, connected, place_of, route
from gpuctl.transport.exits import of_signal
from gpuctl.transport.mapping import mapped
from gpuctl.transport.plain import DECODE, escaped

if TYPE_CHECKING:
    from gpuctl.spec.inventory import Node

# The shell that becomes the process says its pid, which is its process group's too (sshd gives it a session), and when
# that began, in clock ticks: after a night's sleep of this machine the same number may be another's.
BEGUN = 'begun() { read -r stat </proc/$1/stat; set -- ${stat##*")" }; printf %s "${20}"; }; '
ANNOUNCE = BEGUN + r'printf "\001%d %s\n" $$ "$(begun $$ 2>/dev/null)" >&2; '
PID = re.compile(rb"\x01(\d+) (\d*)\n")
KILL = BEGUN + 'test "$(begun $1 2>/dev/null)" = "$2" && kill -s KILL -- -$1'
MAX_NOISE = 256 * 1024
KILL_S = 5.0
CHANNELS = 8  # sshd's MaxSessions is 10 unless somebody lowers it; then `_Room` learns how many there are


class ChannelRefused(Unreachable):
    """The connection stands, but its server grants no further channel on it."""


class SshTransport:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.where = place_of(node)
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._open = AsyncExitStack()
        self._room = _Room(CHANNELS)

    async def start(self, argv: Sequence[str], *, terminal: Terminal | None = None) -> Process:
        command = as_command(argv, announce=terminal is None)  # on a terminal it would be seen, and a hangup ends it
        while True:
            await self._room.enter()
            try:
                return await self._channel(command, terminal)
            except ChannelRefused:
                self._room.leave()
                if not self._room.shrink():  # it grants not even one
                    raise
            except BaseException:
                self._room.leave()
                raise

    async def aclose(self) -> None:
        self._connection = None
        await self._open.aclose()

    async def _channel(self, command: str, terminal: Terminal | None) -> SshProcess:
        """On the connection that there is, or, where that turns out to be dead, on a new one."""
        kept = self._connection
        if kept is not None and not kept.is_closed():
            try:
                return await self._on(kept, command, terminal)
            except ConnectionLost:
                kept.abort()
        return await self._on(await self._fresh(kept), command, terminal)

    async def _on(self, connection: Connection, command: str, terminal: Terminal | None) -> SshProcess:
        try:
            async with asyncio.timeout(self._node.connect_timeout):
                with mapped(self.where):
                    process = await _opened(connection, self.where, command, terminal)
                    return SshProcess(process, connection, self.where, self._room)
        except TimeoutError:
            connection.abort()
            raise ConnectionLost(
                f"{self.where}: no answer on an open connection", "Look at the network; ask again."
            ) from None

    async def _fresh(self, stale: Connection | None) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection is stale:
                self._connection = None
                await self._open.aclose()
                self._connection = await self._open.enter_async_context(connected(await route(self._node)))
            return self._connection


class SshProcess:
    def __init__(
        self, process: asyncssh.SSHClientProcess[bytes], connection: Connection, where: str, room: _Room
    ) -> None:
        self._process, self._connection, self._where, self._room = process, connection, where, room
        self._in_room = True
        self._pid: int | None = None  # 0 where it never said
        self._begun = ""
        self._stderr_head = b""  # of standard error, before and after the pid
        self._reading_head = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        with mapped(self._where):
            try:
                self._process.stdin.write(data)
                await self._process.stdin.drain()
            except BrokenPipeError:
                return  # it has ended, or closed its input: its exit says why

    async def close_stdin(self) -> None:
        with mapped(self._where):
            if not self._process.stdin.is_closing():
                self._process.stdin.write_eof()

    async def read(self, limit: int = READ_SIZE) -> bytes:
        with mapped(self._where):
            return await self._process.stdout.read(limit)

    async def read_stderr(self, limit: int = READ_SIZE) -> bytes:
        with mapped(self._where):
            await self._learn_pid()
            head, self._stderr_head = self._stderr_head[:limit], self._stderr_head[limit:]
            return head or await self._process.stderr.read(limit)

    async def wait(self) -> int:
        with mapped(self._where):
            await self._process.wait_closed()
        self._leave()
        if self._process.exit_signal is not None:
            return of_signal(self._process.exit_signal[0])
        if self._process.exit_status is None:
            raise ConnectionLost(
                f"{self._where}: the connection was lost before the exit code came",
                "What runs there goes on; ask again.",
            )
        return self._process.exit_status

    async def kill(self) -> None:
        """By its pid, over a channel of its own: sshd passes no signals on for root."""
        if self._in_room and self._process.returncode is None:
            with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):  # out of reach: then nothing can be done
                async with asyncio.timeout(KILL_S):
                    await self._learn_pid()
                    if self._pid:
                        kill = f"exec sh -c '{KILL}' sh {self._pid} {self._begun}"
                        await self._connection.run(kill, stdin=asyncssh.DEVNULL)
        self._process.close()
        self._leave()

    async def resize(self, columns: int, rows: int) -> None:
        self._process.change_terminal_size(columns, rows)

    async def _learn_pid(self) -> None:
        """What `ANNOUNCE` wrote to standard error, after what login scripts may have written there."""
        async with self._reading_head:
            while self._pid is None:
                part = await self._process.stderr.read(READ_SIZE)
                self._stderr_head += part
                if found := PID.search(self._stderr_head):
                    self._pid, self._begun = int(found[1]), found[2].decode()
                    self._stderr_head = self._stderr_head[: found.start()] + self._stderr_head[found.end() :]
                elif not part or len(self._stderr_head) > MAX_NOISE:
                    self._pid = 0  # a forced command, which ran instead of ours

    def _leave(self) -> None:
        if self._in_room:
            self._in_room = False
            self._room.leave()


class _Room:
    """How many channels may be open at once."""

    def __init__(self, size: int) -> None:
        self._size, self._inside = size, 0
        self._left = asyncio.Event()

    async def enter(self) -> None:
        while self._inside >= self._size:
            self._left.clear()
            await self._left.wait()
        self._inside += 1

    def leave(self) -> None:
        self._inside -= 1
        self._left.set()

    def shrink(self) -> bool:
        """To what the server has granted, after it refused one more. False where it grants none."""
        self._size = max(self._inside, 1)
        return self._inside > 0


def as_command(argv: Sequence[str], *, announce: bool = True) -> str:
    """For the login shell at the far end, whichever that is: it sees plain words between single quotes."""
    script = ANNOUNCE + DECODE if announce else DECODE
    return " ".join(["exec sh -c", f"'{script}'", "sh", *(f"'{escaped(word)}'" for word in checked(argv))])


async def _opened(
    connection: Connection, where: str, command: str, terminal: Terminal | None
) -> asyncssh.SSHClientProcess[bytes]:
    wanted: dict[str, Any] = {"request_pty": False}
    if terminal is not None:
        size = (terminal.columns, terminal.rows)
        wanted = {"request_pty": "force", "term_type": terminal.kind, "term_size": size}
    try:
        return await connection.create_process(command, encoding=None, **wanted)
    except asyncssh.ChannelOpenError as error:
        if connection.is_closed():
            raise ConnectionLost(f"{where}: the connection was lost", "Ask again.") from error
        raise ChannelRefused(
            f"{where}: it refuses another channel: {error.reason}",
            "Its sshd may allow no command at all (ForceCommand, MaxSessions 0).",
        ) from error
