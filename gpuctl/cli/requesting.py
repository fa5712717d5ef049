"""What kill, relaunch and rm share: they never guess among live runs, and ask before they touch another's."""

from __future__ import annotations

from collections.abc import Sequence

from gpuctl.cli import output
from gpuctl.cli.failures import Interrupted
from gpuctl.errors import UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.runs import Found, find_all, list_runs
from gpuctl.fleet.who import whoami
from gpuctl.store import Store


async def named(fleet: Fleet, store: Store, words: Sequence[str]) -> list[Found]:
    """The runs meant, each with a fresh row. No word: the live ones are listed, and none is taken."""
    if words:
        return await find_all(fleet, store, words, sure=True)
    listing = await list_runs(fleet, list(fleet.inventory.nodes.values()), store, ended=False)
    live = [one for one in listing.found if one.live]
    told = ", ".join(f"{one.run} ({one.row.state} on {one.node.name})" for one in live if one.row)
    raise UsageError(f"which run? {f'live ones: {told}' if live else 'none is live'}", "name it by its id")


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
