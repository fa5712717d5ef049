"""What kill, relaunch and rm share: they never guess among live runs, and ask before they touch another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gpuctl.cli import output
from gpuctl.cli.failures import Interrupted
from gpuctl.errors import UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.runs import Found, Listing, find_all, list_runs
from gpuctl.fleet.who import whoami
from gpuctl.store import Store

_MOST_NAMED = 10
_SILENCE_S = 5.0


async def named(fleet: Fleet, store: Store, words: Sequence[str], *, ended: bool = False) -> list[Found]:
    """The runs meant, each with a fresh row. No word: none is taken; the live ones are listed, or those that have
    `ended`, and the nodes that can't say what they have."""
    if words:
        return await find_all(fleet, store, words, sure=True)
    listing = await list_runs(fleet, list(fleet.inventory.nodes.values()), store, ended=ended)
    raise UsageError(_which(listing, ended=ended), "name it by its id: gpuctl ps -a lists them all")


def _which(listing: Listing, *, ended: bool) -> str:
    kind = "ended" if ended else "live"
    ones = [one for one in listing.found if one.live != ended]
    shown = [f"{one.run} ({one.row.state} on {one.node.name})" for one in reversed(ones) if one.row]
    more = f", and {len(shown) - _MOST_NAMED} older" if len(shown) > _MOST_NAMED else ""
    there = f"{kind} ones: {', '.join(shown[:_MOST_NAMED])}{more}" if shown else f"there is no {kind} one"
    return f"which run? {there}" + "".join(f"; not known: {error.what}" for error in listing.errors)


@contextmanager
def heard(run: str) -> Iterator[Callable[[], None]]:
    """Says so once where a request is not answered for some seconds; the block calls what it is given at each word."""
    late = asyncio.get_running_loop().call_later(
        _SILENCE_S, output.note, f"{run}: its supervisor has not answered yet; waiting"
    )
    try:
        yield late.cancel
    finally:
        late.cancel()


def confirm(found: Sequence[Found], verb: str, *, yes: bool) -> None:
    """Asks, on a terminal, before another's run is touched."""
    me = whoami()
    others = [one for one in found if one.row is not None and one.row.by not in (None, me)]
    if not others or yes or not output.on_terminal():
        return
    told = ", ".join(f"{one.run} (by {one.row.by})" for one in others if one.row)
    if not output.ask(f"{verb} what another launched: {told}?"):
        output.note("nothing was done")
        raise Interrupted
