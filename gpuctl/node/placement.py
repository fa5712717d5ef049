"""Where a run stands on its node: its GPUs, its leases, its place in the queue, the run that it follows."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Type

from gpuctl.node import program
from gpuctl.node.allocation import Busy, choose, wanted
from gpuctl.node.folders import RunFolder, StateFolder
from gpuctl.node.journal import outline
from gpuctl.node.leases import Taken
from gpuctl.node.refusal import Refusal
from gpuctl.wire.life import Life, fold
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import DeviceSample
from gpuctl.wire.word import Word

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor

LAUNCH_FILE = "launch.json"
QUEUE_LOOK_S = 1.0


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


def read_launch(run: RunFolder) -> Launch:
    with open(os.path.join(run.path, LAUNCH_FILE), encoding="utf-8") as file:
        return Launch.from_json(json.load(file))


class Placement:
    """The supervisor's part of it: takes the leases before each attempt, or waits in the queue for them."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._of = supervisor
        launch = read_launch(supervisor.run)
        self._chosen = [gpu["uuid"] for gpu in launch.gpus]
        self.devices: List[DeviceSample] = []

    def devices_of(self, event: Mapping[str, Any]) -> None:
        """The devices of an attempt that another supervisor started."""
        self._chosen = list(event.get("uuids", []))
        self.devices = [DeviceSample(index, uuid) for index, uuid in zip(event.get("gpus", []), self._chosen)]

    def take(self) -> bool:
        """The run's GPUs, leased. Waits in the queue where the launch said so; False: the run has ended instead, or is
        to begin anew with other values."""
        of = self._of
        if not self._follow():
            return False
        if of.telemetry is None:
            self.devices = []
            return True
        waiting = False
        while True:
            try:
                self._take_now()
                return True
            except Refusal as refusal:
                of.finish("failed", refusal.what)
                return False
            except Busy as busy:
                if not self._queues:
                    of.finish("blocked", busy.why)
                    return False
                if not waiting:
                    of.leases.enqueue(of.spec.run, busy.uuids, wanted(of.spec) or len(busy.uuids), self._since())
                    of.record.write("waiting", why=busy.why, queue=of.leases.place(of.spec.run))
                    waiting = True
            if not of.waited(QUEUE_LOOK_S, "was queued"):
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
        while True:
            try:
                state = life_of(of.node, first)
            except Refusal as refusal:
                of.finish("blocked", f"it was to start after {first}: {refusal.what}")
                return False
            if state.state == "succeeded":
                return True
            if state.over:
                of.finish(
                    "blocked",
                    f"it was to start once {first} has succeeded, which ended {state.state}; "
                    f"`gpuctl relaunch {of.spec.run}` starts it all the same",
                )
                return False
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
            if not self._chosen or len(mine) < len(self._chosen):
                mine = choose(of.spec, of.node, sample, held)
            if self._queues and not self._chosen:
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
