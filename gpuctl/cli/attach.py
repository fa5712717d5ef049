"""`gpuctl attach`: the tmux view of a run, on this terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import click

from gpuctl.agent import Agent
from gpuctl.cli import options, output
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.following import detaching, lost
from gpuctl.cli.tail import show_log
from gpuctl.errors import GpuctlError, UsageError
from gpuctl.fleet.runs import find
from gpuctl.transport import Process, Terminal, run

_TMUX = ("tmux", "-L", "gpuctl")
_LOOK_S = 30.0
_CTRL_C = b"\x03"


@click.command("attach", epilog="Example: gpuctl attach eagle3-train. Without a tmux view: the log, as by tail -f.")
@options.run
@options.inventory
def command(run: str | None) -> int:
    """Look at a run's tmux view; RUN left out: the newest launched from here.

    Ctrl-C leaves the view only: the run goes on.
    """
    return options.performed(_attach(run))


async def _attach(word: str | None) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("attach needs a terminal", "gpuctl tail -f shows the log without one")
    async with options.opened() as (fleet, store):
        found = await find(fleet, store, word)
        agent = fleet.agent(found.node)
        session = f"={found.run}"
        looked = await run(agent.transport, [*_TMUX, "has-session", "-t", session], deadline_s=_LOOK_S)
        if looked.exit_code:
            output.note(f"{found.run} has no tmux view; this is its log (Ctrl-C leaves, the run goes on)")
            with detaching(found.run):
                await show_log(agent, found.run, lost=lost)
            return 0
        if await _view(agent, [*_TMUX, "attach-session", "-t", session]):
            output.note(f"left the view; {found.run} goes on. To stop it: gpuctl kill {found.run}")
            raise Interrupted
    return 0


async def _view(agent: Agent, argv: list[str]) -> bool:
    """Connects this terminal with it, until it ends (False) or Ctrl-C is pressed (True)."""
    process = await agent.transport.start(argv, terminal=_terminal())
    loop = asyncio.get_running_loop()
    keys: asyncio.Queue[bytes] = asyncio.Queue()
    try:
        with _every_key():
            loop.add_reader(sys.stdin.fileno(), lambda: keys.put_nowait(os.read(sys.stdin.fileno(), 4096)))
            loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(_resize(process)))
            typing, showing = asyncio.create_task(_type(keys, process)), asyncio.create_task(_show(process))
            done, waiting = await asyncio.wait([typing, showing], return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for task in done:
                task.result()
            if typing in done:
                return True
            if code := await process.wait():
                raise GpuctlError(
                    f"{agent.node.name}: the view ended with exit code {code}", "gpuctl tail -f shows the log"
                )
            return False
    finally:
        loop.remove_reader(sys.stdin.fileno())
        loop.remove_signal_handler(signal.SIGWINCH)
        await process.kill()


async def _type(keys: asyncio.Queue[bytes], process: Process) -> None:
    """What is typed goes there; Ctrl-C, or the end of what can be typed, ends this."""
    while (typed := await keys.get()) and _CTRL_C not in typed:
        await process.write(typed)


async def _show(process: Process) -> None:
    while piece := await process.read():
        output.raw(piece)


async def _resize(process: Process) -> None:
    size = _terminal()
    await process.resize(size.columns, size.rows)


def _terminal() -> Terminal:
    size = shutil.get_terminal_size()
    return Terminal(os.environ.get("TERM", "xterm"), size.columns, size.lines)


@contextmanager
def _every_key() -> Iterator[None]:
    """The terminal hands over each key as it is typed, Ctrl-C too; afterwards it is as before, on its main screen."""
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        output.text("\x1b[?1049l\x1b[?25h\x1b[0m\r\n")  # a view that was cut off had no time to leave its own screen
