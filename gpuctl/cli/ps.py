"""`gpuctl ps`: the runs, from the nodes themselves."""

from __future__ import annotations

import click

from gpuctl.cli import options, output, sentences
from gpuctl.errors import GpuctlError
from gpuctl.fleet.runs import Found, Listing, absent, list_runs, matching


@click.command(
    "ps",
    epilog="Example: gpuctl ps -a --node gpu1 --json. Exit code 4 if a node can't be reached, after the others' rows.",
)
@options.runs
@click.option("-a", "--all", "ended", is_flag=True, help="All ended runs, not only those of the last 24 hours.")
@click.option("--node", "nodes", metavar="N", multiple=True, help="Only this node's (repeatable; a,b; label=value).")
@options.as_json
@options.inventory
def command(runs: tuple[str, ...], ended: bool, nodes: tuple[str, ...], as_json: bool) -> int:
    """Show live runs and those that ended in the last 24 hours.

    RUN: an id, a prefix of one, or a job's name.
    """
    return options.performed(_ps(runs, ended, nodes, as_json))


async def _ps(words: tuple[str, ...], ended: bool, nodes: tuple[str, ...], as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        with output.doing("asking the nodes"):
            listing = await list_runs(fleet, options.chosen(fleet.inventory, nodes), store, ended=ended or bool(words))
    found = _named(words, listing) if words else listing.found
    if as_json:
        output.document([one.row.to_json() for one in found if one.row])
    else:
        output.table(table(found))
    return told(listing.errors)


def _named(words: tuple[str, ...], listing: Listing) -> list[Found]:
    """All runs that the words name: here a job's name means all of its runs."""
    named: dict[str, Found] = {}
    for word in words:
        matches = matching(word, listing.found)
        if not matches:
            raise absent(word, listing)
        named.update((one.run, one) for one in matches)
    return list(named.values())


def told(errors: list[GpuctlError]) -> int:
    """Says each node's trouble; the exit code for them all."""
    for error in errors:
        output.error(error.what, error.hint)
    return max((error.exit_code for error in errors), default=0)


def table(found: list[Found]) -> output.Table:
    rows = [
        [
            row.run,
            row.state,
            one.node.name if row.machine is None else f"{one.node.name} (of {row.machine})",
            sentences.gpus(row.gpus) or None,
            str(row.attempt) if row.attempt is not None else None,
            sentences.progress(row.progress),
            sentences.params(row.params) or None,
            sentences.when(row.created),
            sentences.last_words(row),
        ]
        for one in found
        if (row := one.row) is not None
    ]
    columns = ["run", "state", "node", "gpus", "attempt", "progress", "params", "created", "why"]
    return output.Table(columns, rows, empty="no runs; gpuctl ps -a shows older ones")
