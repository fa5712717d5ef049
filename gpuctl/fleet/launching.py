"""Starting a run so that one always knows whether it was started.

The run's id is made here, before the node is asked: asking again is the same run. So a lost answer is asked for again,
and an interrupted launch finds out what became of it before it says anything.
"""

from __future__ import annotations

import asyncio

from gpuctl.agent import Agent, Started
from gpuctl.errors import ConnectionLost, DeadlinePassed, GpuctlError
from gpuctl.spec.render import Rendered

_TRIES = 3
_SETTLE_S = 15.0


class LaunchInterrupted(Exception):
    """Ctrl-C came while the node was asked. `started` where the run lives; `known` False where nobody can tell now."""

    def __init__(self, run: str, started: Started | None, known: bool) -> None:
        super().__init__(run)
        self.run, self.started, self.known = run, started, known


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
    return await agent.start(rendered.spec, secrets=rendered.secrets, force=force)


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
        async with asyncio.timeout(_SETTLE_S):
            rows = await agent.ps(runs=[run])
        return LaunchInterrupted(run, Started(rows[0], []) if rows else None, known=True)
    except (GpuctlError, TimeoutError):
        return LaunchInterrupted(run, None, known=False)
