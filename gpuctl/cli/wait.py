"""`gpuctl wait`: until runs end."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from gpuctl.cli import options, output
from gpuctl.cli.following import ended_well, until_ended
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.runs import Found, find_all


@click.command("wait", epilog="Example: gpuctl wait eagle3-prepare && gpuctl launch jobs/eagle3-extract.yaml")
@options.runs
@click.option(
    "--timeout", type=options.Duration(), metavar="2h", help="Give up after this long: exit code 1, the runs go on."
)
@options.as_json
@options.inventory
def command(runs: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Wait until runs end; exit code 0 if all succeeded, 1 otherwise. RUN left out: the newest launched from here."""
    return options.performed(_wait(runs, timeout, as_json))


async def _wait(words: tuple[str, ...], deadline_s: float | None, as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        found = await find_all(fleet, store, words)
        with output.doing(f"waiting for {', '.join(one.run for one in found)}"):
            endings = await _endings(fleet, found, deadline_s)
    if as_json:
        output.document([
            {"run": one.run, "node": one.node.name, "state": end and end.get("state"), "why": end and end.get("why")}
            for one, end in endings
        ])  # fmt: skip
    else:
        for one, end in endings:
            output.line(told(one.run, end))
    return 0 if all(ended_well(end) for _one, end in endings) else 1


async def _endings(
    fleet: Fleet, found: list[Found], deadline_s: float | None
) -> list[tuple[Found, dict[str, Any] | None]]:
    """Each run's `run_finished`; None where it had not ended by the deadline."""
    waiting = {asyncio.ensure_future(until_ended(fleet.agent(one.node), one.run)): one for one in found}
    try:
        done, _late = await asyncio.wait(waiting, timeout=deadline_s)
        return [(one, task.result() if task in done else None) for task, one in waiting.items()]
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def told(run: str, finished: dict[str, Any] | None) -> str:
    """A run's ending as one line."""
    if finished is None:
        return f"{run}: has not ended"
    why = f": {finished['why']}" if finished.get("why") else ""
    return f"{run}: {finished.get('state')}{why}"
