"""`gpuctl prune`: old runs' folders and unused bundles."""

from __future__ import annotations

from typing import Any

import click

from gpuctl.agent import Agent
from gpuctl.cli import options
from gpuctl.cli.rm import removed


@click.command("prune", epilog="Example: gpuctl prune gpu1 --older-than 30d --keep 20 --dry-run")
@options.nodes
@click.option(
    "--older-than", type=options.Duration(), default="30d", show_default=True, help="Only runs that ended before that."
)
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N in any case.")
@click.option("--archives", is_flag=True, help="Also the outputs that relaunches set aside.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@options.as_json
@options.inventory
def command(nodes: tuple[str, ...], older_than: float, as_json: bool, **how: Any) -> int:
    """Remove ended runs' folders and unused bundles; NODE left out: on all nodes.

    Never a live run; a line of history stays of each.
    """
    return options.performed(_prune(nodes, older_than, as_json, **how))


async def _prune(
    words: tuple[str, ...], older_than_s: float, as_json: bool, *, keep: int | None, archives: bool, dry_run: bool
) -> int:
    async def remove(agent: Agent) -> dict[str, Any]:
        return await agent.remove(older_than_s=older_than_s, keep=keep, archives=archives, dry_run=dry_run)

    async with options.opened() as (fleet, store):
        nodes = options.chosen(fleet.inventory, words)
        return await removed(fleet, store, nodes, remove, dry_run=dry_run, as_json=as_json)
