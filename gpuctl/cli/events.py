"""`gpuctl events`: what happened to a run, from its journal."""

from __future__ import annotations

from contextlib import aclosing

import click

from gpuctl.cli import options, output, sentences
from gpuctl.cli.following import detaching, lost
from gpuctl.fleet.follow import follow_events
from gpuctl.fleet.runs import find


@click.command("events", epilog="Example: gpuctl events eagle3-train -f. With --json: the journal's own lines.")
@options.run
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@options.as_json
@options.inventory
def command(run: str | None, follow: bool, as_json: bool) -> int:
    """Show attempts, incidents, actions and progress; RUN left out: the newest launched from here."""
    return options.performed(_events(run, follow, as_json))


async def _events(word: str | None, follow: bool, as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        found = await find(fleet, store, word)
        events = follow_events(fleet.agent(found.node), found.run, follow=follow, lost=lost)
        with detaching(found.run):
            async with aclosing(events):
                async for event in events:
                    if as_json:
                        output.json_line(event)
                    else:
                        output.line(sentences.event_line(event))
    return 0
