"""`gpuctl kill`: ends runs, and waits until their GPUs are empty."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import click

from gpuctl.cli import options, output, sentences
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.following import lost
from gpuctl.cli.requesting import confirm, heard, named
from gpuctl.errors import GpuctlError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.follow import follow_request
from gpuctl.fleet.runs import Found
from gpuctl.fleet.who import whoami
from gpuctl.wire.requests import Request


@click.command(
    "kill", epilog="Example: gpuctl kill eagle3-train --grace 10s. A run that saves on TERM needs its grace."
)
@options.runs
@click.option(
    "--grace", type=options.Duration(), metavar="10s", help="Time to end by itself, instead of the job's own."
)
@options.yes
@options.as_json
@options.inventory
def command(runs: tuple[str, ...], grace: float | None, yes: bool, as_json: bool) -> int:
    """End runs, then wait until their GPUs are empty; exit code 1 if they can't be emptied.

    First its stop signal to the job's own process, after the grace to the rest, then SIGKILL; only what is provably
    ours is touched.
    """
    return options.performed(_kill(runs, grace, yes, as_json))


@dataclass
class Ending:
    """How one run's end went."""

    found: Found
    state: str | None = None
    why: str | None = None
    empty: bool | None = None  # None where it has no GPU
    not_empty: str | None = None  # why not
    after_s: float | None = None
    spared: list[dict[str, Any]] = field(default_factory=list)
    error: GpuctlError | None = None

    def hear(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "gpus_empty":
            self.empty, self.not_empty, self.after_s = True, None, event.get("after_s")
        elif kind == "not_empty":
            self.empty, self.not_empty = False, event.get("why")
        elif kind == "spared":
            self.spared.append({key: event.get(key) for key in ("pid", "name", "why")})
        elif kind == "run_finished":
            self.state, self.why = event.get("state"), event.get("why") or self.why

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        return 0 if not self.found.live or self.ended_clean else 1

    @property
    def ended_clean(self) -> bool:
        return self.empty is not False and self.state not in (None, "blocked")

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.found.run,
            "node": self.found.node.name,
            "state": self.state,
            "why": self.why,
            "gpus_empty": self.empty,
            "not_empty": self.not_empty,
            "after_s": self.after_s,
            "spared": self.spared,
        }


async def _kill(words: tuple[str, ...], grace_s: float | None, yes: bool, as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        found = await named(fleet, store, words)
        confirm([one for one in found if one.live], "end", yes=yes)
        with output.doing(f"ending {', '.join(one.run for one in found)}"):
            try:
                endings = await asyncio.gather(*(_end(fleet, one, grace_s) for one in found))
            except asyncio.CancelledError:
                output.note(f"left; the request to end {', '.join(one.run for one in found)} stands. See: gpuctl ps")
                raise Interrupted from None
    if as_json:
        output.document([ending.to_json() for ending in endings])
    for ending in endings:
        _tell(ending, quiet=as_json)
    return max(ending.exit_code for ending in endings)


async def _end(fleet: Fleet, found: Found, grace_s: float | None) -> Ending:
    ending = Ending(found)
    if not found.live:
        ending.state, ending.why = (found.row.state, found.row.why) if found.row else (None, None)
        return ending
    request = Request(id=uuid.uuid4().hex, kind="kill", by=whoami(), grace_s=grace_s)
    try:
        with heard(found.run) as answered:
            async with aclosing(follow_request(fleet.agent(found.node), found.run, request, lost=lost)) as events:
                async for event in events:
                    answered()
                    ending.hear(event)
    except GpuctlError as error:
        ending.error = error
    return ending


def _tell(ending: Ending, *, quiet: bool) -> None:
    run = ending.found.run
    if ending.error is not None:
        output.error(f"{run}: {ending.error.what}", ending.error.hint)
        return
    for spared in ending.spared:
        output.note(f"{run}: spared {spared['name']} (pid {spared['pid']}): {spared['why']}")
    if ending.exit_code:
        output.error(
            f"{run}: its GPUs are not empty: {ending.not_empty or ending.why}",
            f"see: gpuctl clean {ending.found.node.name} --dry-run",
        )
    elif not quiet:
        already = "" if ending.found.live else "had ended already: "
        empty = f"; its GPUs were empty after {sentences.duration(ending.after_s)}" if ending.empty else ""
        output.line(f"{run}: {already}{ending.state}{empty}")
