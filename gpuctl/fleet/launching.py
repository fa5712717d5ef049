"""Starting a run so that one always knows whether it was started.

The run's id is made here, before the node is asked: asking again is the same run. So a lost answer is asked for again,
and a launch that is interrupted, or never hears an answer, finds out what became of it before it says anything.
"""

from __future__ import annotations

import asyncio

from gpuctl.agent import Agent, Started
from gpuctl.errors import ConnectionLost, DeadlinePassed, GpuctlError, Unreachable
from gpuctl.spec.render import Rendered

_TRIES = 3
_SETTLE_S = 15.0


class LaunchInterrupted(Exception):
    """Ctrl-C came while the node was asked. `started` where the run lives; `known` False where nobody can tell now."""

    def __init__(self, run: str, started: Started | None, known: bool) -> None:
        super().__init__(run)
        self.run, self.started, self.known = run, started, known


class LaunchUnknown(Unreachable):
    """The node was asked to start the run, and nobody can tell now whether it did."""


async def start(agent: Agent, rendered: Rendered, *, force: bool = False) -> Started:
    """Starts the run; its first record is on the node's disk. Raises `LaunchInterrupted` on cancellation."""
    asked = asyncio.ensure_future(_asked(agent, rendered, force))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        raise await _settled(agent, rendered.spec.run, asked) from None


async def _asked(agent: Agent, rendered: Rendered, force: bool) -> Started:
    for _try in range(_TRIES - 1):
        try:
            return await agent.start(rendered.spec, secrets=rendered.secrets, force=force)
        except (ConnectionLost, DeadlinePassed):
            continue  # the answer was lost, not necessarily the run: the same id again is the same run
    try:
        return await agent.start(rendered.spec, secrets=rendered.secrets, force=force)
    except Unreachable as error:
        return await _after(error, agent, rendered.spec.run)


async def _after(error: Unreachable, agent: Agent, run: str) -> Started:
    """The run, where the node has it although its answer never came; else the error."""
    if not agent.reached:
        raise error
    try:
        found = await _looked_up(agent, run)
    except (GpuctlError, TimeoutError):
        raise LaunchUnknown(
            f"{error.what}; {run} may have been started", f"see: gpuctl ps {run}. {error.hint}"
        ) from error
    if found is None:
        raise error
    return Started(found.run, [f"{run} was started, but its node did not say so: {error.what}"])


async def _settled(agent: Agent, run: str, asked: asyncio.Future[Started]) -> LaunchInterrupted:
    if not agent.reached:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return LaunchInterrupted(run, None, known=True)
    try:
        return LaunchInterrupted(run, await asyncio.wait_for(asked, _SETTLE_S), known=True)
    except (GpuctlError, TimeoutError):
        pass  # no answer: the node's list of runs tells
    try:
        return LaunchInterrupted(run, await _looked_up(agent, run), known=True)
    except (GpuctlError, TimeoutError):
        return LaunchInterrupted(run, None, known=False)


async def _looked_up(agent: Agent, run: str) -> Started | None:
    async with asyncio.timeout(_SETTLE_S):
        rows = await agent.ps(runs=[run])
    return Started(rows[0], []) if rows else None
