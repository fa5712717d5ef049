"""Past runs of all nodes, with what their attempts have shown: what fitted, what did not, what the failures cost.

The ledger outlives a run's folder, so a run may be known by its attempts alone; one that ended on GPUs that others used
has none there. Of a node that can't be reached, what was last seen of its runs is in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuctl.agent import Agent
from gpuctl.errors import GpuctlError
from gpuctl.fleet.fleet import Answer, Fleet
from gpuctl.fleet.runs import DEADLINE_S
from gpuctl.spec.inventory import Node
from gpuctl.store import Store
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.replies import RunRow


@dataclass(frozen=True)
class Past:
    """One run. `row` is None where only its attempts are known. Costs are None where the node has no price."""

    run: str
    job: str
    node: Node
    row: RunRow | None = None
    attempts: list[LedgerEntry] = field(default_factory=list)
    removed: bool = False  # its folder is gone
    seen: bool = False  # by the store only: its node could not be asked

    @property
    def gpu_hours(self) -> float:
        return gpu_hours(self.attempts)

    @property
    def gpu_hours_lost(self) -> float:
        """Those of the attempts that ended in a failure."""
        return gpu_hours(entry for entry in self.attempts if entry.cls is not None)

    @property
    def cost(self) -> float | None:
        price = self.node.gpu_hour_cost
        return None if price is None else price * self.gpu_hours

    @property
    def cost_lost(self) -> float | None:
        price = self.node.gpu_hour_cost
        return None if price is None else price * self.gpu_hours_lost

    @property
    def begun(self) -> str:
        return (self.row.created if self.row else None) or (self.attempts[0].time if self.attempts else "")


@dataclass(frozen=True)
class History:
    """Oldest first, and why some nodes said nothing."""

    past: list[Past] = field(default_factory=list)
    errors: list[GpuctlError] = field(default_factory=list)

    @property
    def gpu_hours(self) -> float:
        return sum(one.gpu_hours for one in self.past)

    @property
    def gpu_hours_lost(self) -> float:
        return sum(one.gpu_hours_lost for one in self.past)

    @property
    def cost_lost(self) -> float | None:
        """Of the runs on nodes that have a price; None where no node has one."""
        costs = [one.cost_lost for one in self.past if one.cost_lost is not None]
        return sum(costs) if costs else None


@dataclass(frozen=True)
class Values:
    """What is known of one job template on so many GPUs of one model."""

    job: str
    template: str
    model: str
    count: int
    fitted: list[LedgerEntry]
    failed: list[LedgerEntry]


def gpu_hours(attempts: Iterable[LedgerEntry]) -> float:
    return sum((entry.duration_s or 0.0) * entry.count for entry in attempts) / 3600


async def history(fleet: Fleet, nodes: Sequence[Node], store: Store, *, job: str | None = None) -> History:
    """All past and present runs, or one job's."""

    async def one(agent: Agent) -> tuple[list[RunRow], list[RunRow], list[LedgerEntry]]:
        rows, ledger = await agent.ps(all=True), await agent.ledger(job=job)
        return rows, ledger.removed, ledger.entries

    by_run: dict[str, Past] = {}
    answers = await fleet.ask(nodes, one, deadline_s=DEADLINE_S)
    for answer in answers:
        for past in _past_of(answer, store):
            # Two entries of the inventory may share a state folder: the run is its own node's.
            if job in (None, past.job) and (past.run not in by_run or _at_home(past)):
                by_run[past.run] = past
    found = sorted(by_run.values(), key=lambda past: (past.begun, past.run))
    return History(found, [answer.error for answer in answers if answer.error is not None])


def values(past: Iterable[Past]) -> list[Values]:
    """What fitted and what ran out of memory, for each template, model and number of GPUs."""
    kinds: dict[tuple[str, str, str, int], list[LedgerEntry]] = {}
    for one in past:
        for entry in one.attempts:
            kinds.setdefault((entry.job, entry.template, entry.model, entry.count), []).append(entry)
    return [
        Values(*kind, [entry for entry in found if entry.fitted], [entry for entry in found if entry.too_big])
        for kind, found in kinds.items()
    ]


def _past_of(answer: Answer[tuple[list[RunRow], list[RunRow], list[LedgerEntry]]], store: Store) -> Iterable[Past]:
    node = answer.node
    if answer.value is None:
        return [Past(row.run, row.job, node, row, seen=True) for row in store.seen_on(node.name)]
    rows, removed, entries = answer.value
    store.saw(node.name, (row.to_json() for row in rows))
    found = {row.run: Past(row.run, row.job, node, row, removed=True) for row in removed}
    found |= {row.run: Past(row.run, row.job, node, row) for row in rows}
    for entry in entries:
        past = found.get(entry.run) or Past(entry.run, entry.job, node, removed=True)
        found[entry.run] = replace(past, attempts=[*past.attempts, entry])
    return found.values()


def _at_home(past: Past) -> bool:
    names = {past.row.node} if past.row else {entry.node for entry in past.attempts}
    return past.node.name in names
