"""Where a run stands on its node: its GPUs, its leases, its place in the queue, the run that it follows."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Type

from gpuctl.node import program
from gpuctl.node.allocation import Busy, choose, wanted
from gpuctl.node.clock import boottime
from gpuctl.node.folders import RunFolder, StateFolder
from gpuctl.node.journal import outline
from gpuctl.node.keeper import start_supervisor
from gpuctl.node.leases import Lease, Taken
from gpuctl.node.pursuit import Tail, orphaned
from gpuctl.node.refusal import UNFIT, Refusal
from gpuctl.wire.life import Life, fold
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import DeviceSample
from gpuctl.wire.word import Word

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor

LAUNCH_FILE = "launch.json"
QUEUE_LOOK_S = 1.0
ORPHANED_LOOK_S = 5.0


@dataclass(frozen=True)
class Launch(Word):
    """What `start` decided, beside the spec: the node as it was then, and the GPUs that it leased."""

    node: NodeSpec
    gpus: List[Dict[str, Any]] = field(default_factory=list)  # {"index", "uuid"}
    queued: bool = False

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"node": NodeSpec}


def life_of(node: NodeSpec, run: str) -> Life:
    """Another run of this node, by its journal. Raises Refusal where there is none."""
    return fold(outline(StateFolder(node).existing(run).journal))


def _had(supervisor: Supervisor) -> List[str]:
    """The GPUs of the last attempt, or those that the launch leased; none where the job asks for others now."""
    gpus, started = supervisor.spec.gpus, supervisor.record.started
    if started is not None:
        had = list(zip(started.get("gpus", []), started.get("uuids", [])))
    else:
        had = [(gpu["index"], gpu["uuid"]) for gpu in read_launch(supervisor.run).gpus]
    indices = sorted(index for index, _ in had)
    still = indices == sorted(gpus) if isinstance(gpus, list) else gpus in ("all", len(had))
    return [uuid for _, uuid in had] if still else []


def read_launch(run: RunFolder) -> Launch:
    with open(os.path.join(run.path, LAUNCH_FILE), encoding="utf-8") as file:
        return Launch.from_json(json.load(file))


class Placement:
    """The supervisor's part of it: takes the leases before each attempt, or waits in the queue for them."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._of = supervisor
        self._chosen = _had(supervisor)
        self.devices: List[DeviceSample] = []

    def devices_of(self, event: Mapping[str, Any]) -> None:
        """The devices of an attempt that another supervisor started."""
        self._chosen = list(event.get("uuids", []))
        self.devices = [DeviceSample(index, uuid) for index, uuid in zip(event.get("gpus", []), self._chosen)]

    def forget(self) -> None:
        """Others are to be chosen for the next attempt."""
        self._chosen = []

    def take(self) -> bool:
        """The run's GPUs, leased. Waits in the queue where the launch said so; False: the run has ended instead, or is
        to begin anew with other values."""
        of = self._of
        if not self._follow():
            return False
        if of.telemetry is None:
            self.devices = []
            return True
        end_at: Optional[float] = None  # of the patience with what is out of order just now
        while True:
            try:
                if self._take_or_queue():
                    return True
                end_at = None
            except Busy as busy:
                of.finish("blocked", busy.why)
                return False
            except (Refusal, OSError) as trouble:
                if isinstance(trouble, Refusal) and trouble.code != UNFIT:
                    of.finish("failed", trouble.what)
                    return False
                if end_at is None:
                    end_at = boottime() + of.spec.on_busy_wait_s
                    of.record.write("waiting", why=str(trouble), seconds=of.spec.on_busy_wait_s)
                if boottime() >= end_at:
                    of.finish("blocked", f"its GPUs can't be leased: {trouble}")
                    return False
            if not of.waited(QUEUE_LOOK_S, "was queued" if end_at is None else "waited for its GPUs"):
                return False

    def _take_or_queue(self) -> bool:
        """Whether it has them; not yet, where it waits in the queue. Raises what can't be waited for in turn: Busy, and
        Refusal or OSError, of which much is a matter of the moment (a lock that somebody holds, a driver that gives no
        reading)."""
        of = self._of
        try:
            self._take_now()
            return True
        except Busy as busy:
            if not self._queues:
                raise
            if of.leases.place(of.spec.run) is None:
                of.leases.enqueue(of.spec.run, busy.uuids, wanted(of.spec) or len(busy.uuids), self._since())
                of.record.write("waiting", why=busy.why, queue=of.leases.place(of.spec.run))
            return False

    @property
    def _queues(self) -> bool:
        """A run that follows another queues too: the other's leases end just after it does."""
        return self._of.spec.queue or self._of.spec.after is not None

    def _follow(self) -> bool:
        """Waits until the run that this one is to follow has succeeded; False as in `take`."""
        of, first, told = self._of, self._of.spec.after, False
        if first is None or of.record.number or of.record.relaunch is not None:
            return True
        tail = Tail(StateFolder(of.node).run(first))
        look_at = boottime()
        while True:
            try:
                StateFolder(of.node).existing(first)
            except Refusal as refusal:
                of.finish("blocked", f"it was to start after {first}: {refusal.what}")
                return False
            tail.read()
            if tail.life.state == "succeeded":
                return True
            if tail.life.over:
                of.finish(
                    "blocked",
                    f"it was to start once {first} has succeeded, which ended {tail.life.state}; "
                    f"`gpuctl relaunch {of.spec.run}` starts it all the same",
                )
                return False
            if boottime() >= look_at and orphaned(tail.folder, tail.life, of.machine):
                start_supervisor(tail.folder.path, None)
                look_at = boottime() + ORPHANED_LOOK_S
            if not told:
                of.record.write("waiting", why=f"it starts once {first} has succeeded")
                told = True
            if not of.waited(QUEUE_LOOK_S, "was queued"):
                return False

    def _take_now(self) -> None:
        of = self._of
        assert of.telemetry is not None
        sample = of.telemetry.sample()
        with of.leases.locked():
            held = of.leases.held()
            mine = [device for device in sample.devices if device.uuid in self._chosen]
            had = bool(mine) and len(mine) == len(self._chosen) and not self._passed_on(held)
            if not had:
                mine = choose(of.spec, of.node, sample, held)
            if self._queues and not had:
                ahead = of.leases.ahead(of.spec.run, [device.uuid for device in mine])
                if ahead:
                    raise Busy(f"{len(ahead)} run(s) are ahead in the queue", [device.uuid for device in mine])
            try:
                of.leases.take([device.uuid for device in mine], of.spec.run, of.spec.share)
            except Taken as taken:
                raise Busy(str(taken), [device.uuid for device in mine]) from taken
            of.leases.leave(of.spec.run)
        self.devices = sorted(mine, key=lambda device: device.index)
        self._chosen = [device.uuid for device in self.devices]

    def _passed_on(self, held: Mapping[str, List[Lease]]) -> bool:
        """Has another run got what this one had? It may, once this one has ended; a relaunch then takes others."""
        spec = self._of.spec
        others = [lease for uuid in self._chosen for lease in held.get(uuid, []) if lease.run != spec.run]
        return any(not (spec.share and lease.share) for lease in others)

    def _since(self) -> str:
        return self._of.record.life.created or ""


def simulated_environment(node: NodeSpec) -> Dict[str, str]:
    """What lets a job on a simulated node find the simulated GPUs, and the workloads in the bundle."""
    if node.simulate is None:
        return {}
    from gpuctl.simulation.devices import resolved  # only simulated nodes pay for it

    simulate = resolved(node).simulate
    folder = simulate.folder if simulate is not None else None
    unpacked = os.path.splitext(program.archive())[0]
    return {
        "GPUCTL_SIMULATION": str(folder),
        "PYTHONPATH": unpacked if os.path.isdir(unpacked) else program.archive(),
    }
