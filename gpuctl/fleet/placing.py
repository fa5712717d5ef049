"""Which node a job goes to, where several may take it: the first with enough free GPUs, else the shortest queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuctl.agent import Agent, Gpus
from gpuctl.errors import GpuctlError, RefusedForSafety, UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.spec.inventory import Node
from gpuctl.wire.names import ENDED
from gpuctl.wire.replies import DeviceRow, RunRow

Wanted = int | str | list[int]
"""How many GPUs, which, or `all`."""

_DEADLINE_S = 180.0  # a node's first reading may take long


@dataclass(frozen=True)
class _Offer:
    free: list[int]
    ours: list[int]
    rows: list[RunRow]

    def enough(self, wanted: Wanted) -> bool:
        if isinstance(wanted, int):
            return len(self.free) >= wanted
        return set(self.ours if wanted == "all" else wanted) <= set(self.free)

    def possible(self, wanted: Wanted) -> bool:
        """Could it take the job once its GPUs are free?"""
        if isinstance(wanted, int):
            return len(self.ours) >= wanted
        return wanted == "all" or set(wanted) <= set(self.ours)

    @property
    def queue(self) -> int:
        return sum(row.state == "queued" for row in self.rows)


async def place(fleet: Fleet, nodes: Sequence[Node], wanted: Wanted, *, queue: bool) -> Node:
    """Raises `RefusedForSafety`, with what each lacks, where none has enough. The node itself decides in the end."""
    if len(nodes) == 1:
        return nodes[0]
    answers = await fleet.ask(nodes, _offer, deadline_s=_DEADLINE_S)
    offers = [(answer.node, answer.value) for answer in answers if answer.value is not None]
    for node, offer in offers:
        if offer.enough(wanted):
            return node
    possible = [(node, offer) for node, offer in offers if offer.possible(wanted)]
    if queue and possible:
        # Among equally long queues, the one whose node has less going on, then the inventory's order.
        return min(possible, key=lambda pair: (pair[1].queue, len(pair[1].ours) - len(pair[1].free)))[0]
    told = [f"{node.name} has {len(offer.free)} of {len(offer.ours)} free" for node, offer in offers]
    told += [answer.error.what for answer in answers if answer.error is not None]
    raise _none([answer.error for answer in answers if answer.error is not None], told, bool(offers), bool(possible))


def _none(errors: list[GpuctlError], told: list[str], answered: bool, possible: bool) -> GpuctlError:
    if not answered and errors:
        return errors[0]
    if not possible:
        return UsageError(f"no node has the GPUs that the job asks for: {'; '.join(told)}", "see: gpuctl gpus")
    return RefusedForSafety(
        f"no node has enough free GPUs: {'; '.join(told)}", "--queue waits for them; gpuctl gpus shows who has them"
    )


async def _offer(agent: Agent) -> _Offer:
    gpus = await agent.gpus()
    rows = await agent.ps()
    ours = _ours(agent.node, gpus)
    free = [row.device.index for row in ours if _free(row, agent.node)]
    return _Offer(free, [row.device.index for row in ours], [row for row in rows if row.state not in ENDED])


def _ours(node: Node, gpus: Gpus) -> list[DeviceRow]:
    return [row for row in gpus.devices if node.gpus is None or row.device.index in node.gpus]


def _free(row: DeviceRow, node: Node) -> bool:
    """A reading that is absent is no sign of memory in use: the node looks again when the run starts."""
    used = row.device.memory_used_mib
    return not row.leases and (used is None or used <= node.idle_mib)
