"""Runs over all nodes: listing them, and finding the one that a person means.

A person says an id, a prefix of one, a job's name (its newest run), or nothing (the newest launched from here). Only an
id that the store knows is taken at once; everything else asks the nodes, since runs are launched from elsewhere too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuctl.errors import GpuctlError, NotFound, Unreachable, UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.spec.inventory import Node
from gpuctl.store import Store
from gpuctl.wire.names import ENDED
from gpuctl.wire.replies import RunRow

DEADLINE_S = 30.0


@dataclass(frozen=True)
class Found:
    """A run, the node to reach it through, and its row where the nodes were asked for it."""

    run: str
    node: Node
    row: RunRow | None = None

    @property
    def live(self) -> bool:
        return self.row is not None and self.row.state not in ENDED


@dataclass(frozen=True)
class Listing:
    """Every run that the nodes know, oldest first, and why some nodes said nothing."""

    found: list[Found] = field(default_factory=list)
    errors: list[GpuctlError] = field(default_factory=list)


async def list_runs(fleet: Fleet, nodes: Sequence[Node], store: Store, *, ended: bool = True) -> Listing:
    """`ended`: all ended runs, not only those of the last day."""
    answers = await fleet.ask(nodes, lambda agent: agent.ps(all=ended), deadline_s=DEADLINE_S)
    by_run: dict[str, Found] = {}
    for answer in answers:
        rows = answer.value or []
        store.saw(answer.node.name, (row.to_json() for row in rows))
        for row in rows:
            # Two entries of the inventory may share a state folder: the run is its own node's.
            if row.run not in by_run or row.node == answer.node.name:
                by_run[row.run] = Found(row.run, answer.node, row)
    found = sorted(by_run.values(), key=lambda one: (one.row.created or "" if one.row else "", one.run))
    return Listing(found, [answer.error for answer in answers if answer.error is not None])


async def find(fleet: Fleet, store: Store, word: str | None, *, sure: bool = False) -> Found:
    """The run that `word` means. `sure`: never a guess, and its row is fresh."""
    if word is None:
        newest = store.newest()
        if newest is None:
            raise UsageError("which run? none was launched from here yet", "name one: gpuctl ps lists them")
        word = newest.run
    node = _known_node(fleet, store, word)
    if node is not None and not sure:
        return Found(word, node)
    if node is not None:
        rows = await fleet.agent(node).ps(runs=[word])
        if rows:
            return Found(word, node, rows[0])
    listing = await list_runs(fleet, list(fleet.inventory.nodes.values()), store)
    return choose(word, listing, sure=sure)


async def find_all(fleet: Fleet, store: Store, words: Sequence[str], *, sure: bool = False) -> list[Found]:
    """Each once, in the order of `words`; none: the newest launched from here."""
    if not words:
        return [await find(fleet, store, None, sure=sure)]
    found = [await find(fleet, store, word, sure=sure) for word in words]
    return list({one.run: one for one in found}.values())


def _known_node(fleet: Fleet, store: Store, word: str) -> Node | None:
    name = store.node_of(word)
    return fleet.inventory.nodes.get(name) if name is not None else None


def choose(word: str, listing: Listing, *, sure: bool) -> Found:
    """The run among the listed that `word` means. `sure`: no guess, neither among live ones nor past a silent node."""
    matches = matching(word, listing.found)
    if not matches:
        raise absent(word, listing)
    if sure and listing.errors and matches[0].run != word:
        error = listing.errors[0]
        raise Unreachable(
            f"which run {word!r} means can't be told while a node is silent: {error.what}",
            f"name it by its id, such as {matches[-1].run}. {error.hint}",
        )
    if len(matches) == 1:
        return matches[0]
    if any(one.row and one.row.job == word for one in matches):
        live = [one for one in matches if one.live]
        if sure and len(live) > 1:
            raise UsageError(f"{word!r} has {len(live)} live runs: {_names(live)}", "name one by its id")
        return live[0] if sure and live else matches[-1]
    raise UsageError(f"{word!r} begins several runs: {_names(matches)}", "say more of the id")


def matching(word: str, found: Iterable[Found]) -> list[Found]:
    """By id, else by job, else by prefix; in the order given."""
    found = list(found)
    return (
        [one for one in found if one.run == word]
        or [one for one in found if one.row is not None and one.row.job == word]
        or [one for one in found if one.run.startswith(word)]
    )


def _names(found: Iterable[Found]) -> str:
    return ", ".join(f"{one.run} ({one.row.state} on {one.node.name})" if one.row else one.run for one in found)


def absent(word: str, listing: Listing) -> GpuctlError:
    """That there is no such run; or, where a node said nothing, that it can't be known."""
    known = [one.run for one in listing.found] + [one.row.job for one in listing.found if one.row]
    near = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean {near[0]}?" if near else ""
    if not listing.errors:
        return NotFound(f"no run {word!r}", meant or "gpuctl ps -a lists them all")
    error = listing.errors[0]
    kind = type(error) if isinstance(error, Unreachable) else Unreachable
    return kind(
        f"no run {word!r} on the nodes that answered; it may be on one that did not: {error.what}",
        " ".join(part for part in (meant, error.hint) if part),
    )
