"""`gpuctl rm`: ended runs' folders. What removing shows is shared with `prune`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click

from gpuctl.agent import Agent
from gpuctl.cli import options, output, sentences
from gpuctl.cli.ps import told
from gpuctl.cli.requesting import confirm, named
from gpuctl.errors import RefusedForSafety
from gpuctl.fleet.fleet import Answer, Fleet
from gpuctl.fleet.runs import Found
from gpuctl.spec.inventory import Node
from gpuctl.store import Store


@click.command("rm", epilog="Example: gpuctl rm eagle3-train-x7k2p9. A line of its history stays on the node.")
@options.runs
@click.option("--archives", is_flag=True, help="Also the outputs that relaunches set aside.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@options.yes
@options.as_json
@options.inventory
def command(runs: tuple[str, ...], as_json: bool, **how: bool) -> int:
    """Remove ended runs' folders from their nodes; never a live run (gpuctl kill ends one)."""
    return options.performed(_rm(runs, as_json, **how))


async def _rm(words: tuple[str, ...], as_json: bool, *, archives: bool, dry_run: bool, yes: bool) -> int:
    async with options.opened() as (fleet, store):
        found = await named(fleet, store, words, ended=True)
        live = [one.run for one in found if one.live]
        if live:
            raise RefusedForSafety(f"live, so not removed: {', '.join(live)}", f"first: gpuctl kill {' '.join(live)}")
        confirm(found, "remove", yes=yes or dry_run)
        by_node: dict[str, list[Found]] = {}
        for one in found:
            by_node.setdefault(one.node.name, []).append(one)

        async def remove(agent: Agent) -> dict[str, Any]:
            runs = [one.run for one in by_node[agent.node.name]]
            return await agent.remove(runs=runs, archives=archives, dry_run=dry_run)

        return await removed(
            fleet, store, [ones[0].node for ones in by_node.values()], remove, dry_run=dry_run, as_json=as_json
        )


async def removed(
    fleet: Fleet,
    store: Store,
    nodes: list[Node],
    remove: Callable[[Agent], Awaitable[dict[str, Any]]],
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Removes on each node and says what went and what stayed; the exit code."""
    with output.doing("removing"):
        try:
            answers = await fleet.ask(nodes, remove)
        except asyncio.CancelledError:
            output.note("left; what the nodes were removing may still go")
            raise
    given = [(answer, answer.value) for answer in answers if answer.value is not None]
    if not dry_run:
        for _answer, value in given:
            for item in value.get("removed") or []:
                store.forget(item.get("run", ""))
    if as_json:
        output.document([{"node": answer.node.name, "dry_run": dry_run, **value} for answer, value in given])
    else:
        _show(given, dry_run=dry_run)
    return told([answer.error for answer in answers if answer.error is not None])


def _show(given: list[tuple[Answer[dict[str, Any]], dict[str, Any]]], *, dry_run: bool) -> None:
    doing = "would remove" if dry_run else "removed"
    for answer, value in given:
        for item in value.get("removed") or []:
            output.line(f"{doing} {_name(item)} on {answer.node.name} ({sentences.size(item.get('bytes'))})")
        for item in value.get("kept") or []:
            output.note(f"kept {_name(item)} on {answer.node.name}: {item.get('why')}")
    if not any(value.get("removed") for _answer, value in given):
        output.note("nothing to remove")


def _name(item: dict[str, Any]) -> str:
    """Of a run, of a path, or of a bundle (by its digest, which nobody needs in full)."""
    if item.get("path"):
        return str(item["path"])
    return str(item["run"]) if item.get("run") else f"bundle {str(item.get('bundle'))[:12]}"
