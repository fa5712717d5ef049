"""This machine as a node: processes of our own, started as sshd would start them.

They get a login's environment, not ours: a virtual environment, PYTHONPATH or a GPUCTL_ variable of the caller's
shell would otherwise reach the job here, but not on any other node. They get a session of their own, so that Ctrl-C
reaches only us.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import Sequence
from typing import cast

from gpuctl.transport.base import READ_SIZE, Process, Terminal, checked
from gpuctl.transport.exits import shell_exit_code

LOGIN_VARIABLES = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"}
)

# A missing command is then exit 127 and one that can't be executed 126, as at the far end of any SSH connection.
_EXEC = ("/bin/sh", "-c", 'exec "$@"', "sh")


def login_environment() -> dict[str, str]:
    """What a login would have set, out of our own environment."""
    return {name: value for name, value in os.environ.items() if name in LOGIN_VARIABLES or name.startswith("LC_")}


class LocalTransport:
    def __init__(self, name: str = "local") -> None:
        self.where = name

    async def start(self, argv: Sequence[str], *, terminal: Terminal | None = None) -> Process:
        words = checked(argv)
        if terminal is not None:
            from gpuctl.transport.pty import start_on_terminal  # no pty on every platform, and few calls need one

            return await start_on_terminal(words, terminal, login_environment())
        # What asyncio.create_subprocess_exec does, which keeps the transport to itself; we must be able to close it.
        loop = asyncio.get_running_loop()
        pipes, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=READ_SIZE, loop=loop),
            *_EXEC,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=login_environment(),
        )
        return LocalProcess(asyncio.subprocess.Process(pipes, protocol, loop), pipes)

    async def aclose(self) -> None:
        """Nothing to close: whoever started a process ends it."""


class LocalProcess:
    def __init__(self, started: asyncio.subprocess.Process, pipes: asyncio.SubprocessTransport) -> None:
        self._started, self._pipes = started, pipes
        # All three are pipes, so none is None.
        self._stdin = cast(asyncio.StreamWriter, started.stdin)
        self._stdout = cast(asyncio.StreamReader, started.stdout)
        self._stderr = cast(asyncio.StreamReader, started.stderr)

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.write(data)
            await self._stdin.drain()

    async def close_stdin(self) -> None:
        self._stdin.close()

    async def read(self, limit: int = READ_SIZE) -> bytes:
        return await self._stdout.read(limit)

    async def read_stderr(self, limit: int = READ_SIZE) -> bytes:
        return await self._stderr.read(limit)

    async def wait(self) -> int:
        return shell_exit_code(await self._started.wait())

    async def kill(self) -> None:
        if self._started.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)  # its own session: whatever it started here goes with it
        self._close_pipes()  # else a grandchild in another session, which holds them, would keep us waiting
        await self._started.wait()
        self._pipes.close()

    def _close_pipes(self) -> None:
        """Not by the transport's own `close`: that polls the process, and so takes its exit status from the thread of
        asyncio that waits for it, which then complains on stderr."""
        for fd in range(3):
            pipe = self._pipes.get_pipe_transport(fd)
            if pipe is None or pipe.is_closing():
                continue
            if isinstance(pipe, asyncio.WriteTransport):
                pipe.abort()  # a close would first want to write what nobody reads any more
            else:
                pipe.close()

    async def resize(self, columns: int, rows: int) -> None:
        """It has no terminal."""
