"""`gpuctl tail`: a run's log, byte for byte."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import click

from gpuctl.agent import Agent, Chunk
from gpuctl.cli import options, output
from gpuctl.cli.following import detaching, lost
from gpuctl.cli.logview import LogView
from gpuctl.fleet.follow import Told, follow_log
from gpuctl.fleet.runs import find


@click.command("tail", epilog="Example: gpuctl tail -n 20 -f. In a pipe every byte arrives as the job wrote it.")
@options.run
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows, over attempts and lost connections.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="K", help="This attempt's log; else the newest.")
@click.option("--file", metavar="NAME", help="A file that the job writes itself (watch.logs), instead of its output.")
@options.as_json
@options.inventory
def command(run: str | None, as_json: bool, **what: Any) -> int:
    """Show a run's log; RUN left out: the newest launched from here.

    Ctrl-C while following leaves the run alone. With --json: a line for each piece, {"attempt", "offset", "text"}, or
    "base64" instead of "text" where it is not UTF-8.
    """
    return options.performed(_tail(run, as_json, what))


async def _tail(word: str | None, as_json: bool, what: dict[str, Any]) -> int:
    async with options.opened() as (fleet, store):
        found = await find(fleet, store, word)
        show = as_lines(found.run) if as_json else shower()
        chunks = follow_log(fleet.agent(found.node), found.run, lost=lost, **what)
        with detaching(found.run):
            async with aclosing(chunks):
                async for chunk in chunks:
                    show(chunk)
    return 0


async def show_log(agent: Agent, run: str, *, lost: Told) -> None:
    """The whole log as it grows, to the run's end."""
    show = shower()
    async with aclosing(follow_log(agent, run, lost=lost)) as chunks:
        async for chunk in chunks:
            show(chunk)


def shower() -> Callable[[Chunk], None]:
    """Shows pieces of a log: as they are, on a terminal without control characters."""
    if not output.to_terminal():
        return lambda chunk: output.raw(chunk.data)
    view = LogView()
    return lambda chunk: output.text(view.shown(chunk.data))


def as_lines(run: str) -> Callable[[Chunk], None]:
    def show(chunk: Chunk) -> None:
        piece: dict[str, object] = {"run": run, "attempt": chunk.attempt, "offset": chunk.offset}
        try:
            piece["text"] = chunk.data.decode()
        except UnicodeDecodeError:
            piece["base64"] = base64.b64encode(chunk.data).decode()
        output.json_line(piece)

    return show
