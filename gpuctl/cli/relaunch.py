"""`gpuctl relaunch`: the next attempt of the same run, now, with other values."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import aclosing
from typing import Any

import click

from gpuctl.cli import completion, options, output, sentences
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.following import lost
from gpuctl.cli.launch import job_file
from gpuctl.cli.requesting import confirm, heard, named
from gpuctl.errors import GpuctlError, NodeUnfit
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.follow import follow_request
from gpuctl.fleet.runs import Found
from gpuctl.fleet.who import whoami
from gpuctl.spec.job import as_written, load_job
from gpuctl.spec.render import parse_sets, render, set_texts
from gpuctl.wire.requests import Request


@click.command("relaunch", epilog="Example: gpuctl relaunch eagle3-train --set max_seq_len=12288")
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--set", "sets", metavar="K=V", multiple=True, help="Another value for a parameter.")
@click.option("--job", "job", metavar="FILE", help="Go on with this job file instead of the one launched.")
@options.yes
@options.as_json
@options.inventory
def command(run: str | None, sets: tuple[str, ...], job: str | None, yes: bool, as_json: bool) -> int:
    """End the current attempt, if one lives, clean up, and start the next.

    Also for a run that has ended: same run, next attempt, budgets anew. Returns once the attempt has started.
    """
    return options.performed(_relaunch(run, sets, job, yes, as_json))


async def _relaunch(word: str | None, sets: tuple[str, ...], job: str | None, yes: bool, as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        (found,) = await named(fleet, store, [word] if word else [])
        confirm([found], "relaunch", yes=yes)
        request, secrets = _request(found, sets, job)
        with output.doing(f"relaunching {found.run}"):
            try:
                outcome = await _outcome(fleet, found, request, secrets)
            except asyncio.CancelledError:
                output.note(f"left; the request to relaunch {found.run} stands. See: gpuctl events {found.run}")
                raise Interrupted from None
        return await _tell(fleet, found, outcome, as_json)


def _request(found: Found, sets: tuple[str, ...], job: str | None) -> tuple[Request, dict[str, str] | None]:
    """The request, and the values of the secrets; None: those that the node has."""
    request = Request(id=uuid.uuid4().hex, kind="relaunch", by=whoami())
    row = found.row
    assert row is not None, "a run that is asked for with `sure` has its row"  # noqa: S101 - says why to mypy
    if job is None:
        values = parse_sets(sets, row.params)
        written = as_written(values, set_texts(sets))
        return Request(**{**vars(request), "params": values, "written": written}), _at_hand(row.secrets)
    rendered = render(load_job(job_file(job)), found.node, run=found.run, sets=sets, environ=os.environ, by=whoami())
    return Request(**{**vars(request), "spec": rendered.spec.to_json()}), rendered.secrets


def _at_hand(names: list[str]) -> dict[str, str] | None:
    """The run's secrets as far as this shell has them: the node's are gone once nothing of the run lives."""
    return {name: os.environ[name] for name in names if name in os.environ} or None


async def _outcome(fleet: Fleet, found: Found, request: Request, secrets: dict[str, str] | None) -> dict[str, Any]:
    """The event that settled it: the attempt's start, or the run's end where it could not start."""
    agent = fleet.agent(found.node)
    settled = None
    following = follow_request(agent, found.run, request, secrets=secrets, lost=lost)
    with heard(found.run) as answered:
        async with aclosing(following) as events:
            async for event in events:
                answered()
                if event["type"] in ("attempt_started", "run_finished"):
                    settled = event
                elif event["type"] in ("waiting", "spared"):
                    output.note(f"{found.run}: {sentences.sentence(event)}")
    if settled is None:
        raise NodeUnfit(
            f"{found.run}: its node did not say what became of the relaunch", f"see: gpuctl events {found.run}"
        )
    return settled


async def _tell(fleet: Fleet, found: Found, outcome: dict[str, Any], as_json: bool) -> int:
    if outcome["type"] == "run_finished":
        raise GpuctlError(
            f"{found.run} was not relaunched: {sentences.sentence(outcome)}", f"see: gpuctl events {found.run}"
        )
    if as_json:
        rows = await fleet.agent(found.node).ps(runs=[found.run])
        output.document(rows[0].to_json() if rows else {"run": found.run})
    else:
        output.line(f"{found.run}: attempt {outcome.get('attempt')}, {sentences.sentence(outcome)}")
    return 0
