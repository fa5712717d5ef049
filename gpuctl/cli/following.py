"""What the commands that follow a run share: leaving it by Ctrl-C, hearing of lost connections, its end's exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from gpuctl.agent import Agent
from gpuctl.cli import output
from gpuctl.cli.failures import Interrupted
from gpuctl.fleet.follow import follow_events


@contextmanager
def detaching(run: str) -> Iterator[None]:
    """Ctrl-C inside leaves the run alone and says so."""
    try:
        yield
    except asyncio.CancelledError:
        output.note(f"detached; {run} goes on. To stop it: gpuctl kill {run}")
        raise Interrupted from None


def lost(what: str) -> None:
    output.note(f"{what}; trying again, the run goes on (Ctrl-C leaves)")


async def until_ended(
    agent: Agent, run: str, *, after: int = 0, heard: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any] | None:
    """Follows the run to its end; `heard` gets each event. Its `run_finished`, None where the journal lacks one."""
    finished = None
    async with aclosing(follow_events(agent, run, after=after, lost=lost)) as events:
        async for event in events:
            if heard is not None:
                heard(event)
            if event["type"] in ("run_finished", "relaunching"):
                finished = event if event["type"] == "run_finished" else None
    return finished


def ended_well(finished: dict[str, Any] | None) -> bool:
    return finished is not None and finished.get("state") == "succeeded"
