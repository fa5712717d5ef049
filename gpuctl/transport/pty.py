"""A process of this machine on a terminal of its own: what `attach` needs where the node is this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping, Sequence

from gpuctl.transport.base import READ_SIZE, Terminal
from gpuctl.transport.exits import shell_exit_code

# The first terminal that a session's leader opens becomes its own: Ctrl-C there reaches it as a signal. It is opened
# for reading and writing at once, as a login does: tmux hands its standard input to its server, which writes to it.
_EXEC = ("/bin/sh", "-c", 'tty=$1; shift; exec "$@" <>"$tty" >&0 2>&0', "sh")


async def start_on_terminal(argv: Sequence[str], terminal: Terminal, environment: Mapping[str, str]) -> TerminalProcess:
    """It has one stream of output, the terminal's."""
    ours, theirs = os.openpty()
    try:
        _set_size(ours, terminal.columns, terminal.rows)
        started = await asyncio.create_subprocess_exec(
            *_EXEC,
            os.ttyname(theirs),
            *argv,
            stdin=theirs,  # from the start: a terminal that nobody holds open reads as ended
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={**environment, "TERM": terminal.kind},
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return TerminalProcess(started, ours)


class TerminalProcess:
    def __init__(self, started: asyncio.subprocess.Process, ours: int) -> None:
        self._started, self._ours = started, ours
        os.set_blocking(ours, False)

    async def write(self, data: bytes) -> None:
        while data and self._ours >= 0:
            try:
                data = data[os.write(self._ours, data) :]
            except BlockingIOError:
                await self._ready(for_writing=True)
            except OSError:  # it has gone
                return

    async def close_stdin(self) -> None:
        await self.write(b"\x04")  # what Ctrl-D sends: a terminal has no other end

    async def read(self, limit: int = READ_SIZE) -> bytes:
        while self._ours >= 0:
            try:
                return os.read(self._ours, limit)
            except BlockingIOError:
                await self._ready(for_writing=False)
            except OSError as error:
                if error.errno == errno.EIO:  # how Linux says that nobody has the other end open any more
                    return b""
                raise
        return b""

    async def read_stderr(self, limit: int = READ_SIZE) -> bytes:
        return b""

    async def wait(self) -> int:
        return shell_exit_code(await self._started.wait())

    async def kill(self) -> None:
        if self._started.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)
            await self._started.wait()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    async def resize(self, columns: int, rows: int) -> None:
        if self._ours >= 0:
            _set_size(self._ours, columns, rows)

    async def _ready(self, *, for_writing: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        add, remove = (loop.add_writer, loop.remove_writer) if for_writing else (loop.add_reader, loop.remove_reader)
        add(self._ours, ready.set)
        try:
            await ready.wait()
        finally:
            remove(self._ours)


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
