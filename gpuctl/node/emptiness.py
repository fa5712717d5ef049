"""The promise "empty": a GPU holds no more than it may, and nothing of ours that could hold it lives.

Where it does not come true the failure has a name: `foreign_holder` (whose), `unkillable` (ours, but SIGKILL does not
end it), `held_outside` (nothing that is visible from here holds it), `unreadable` (the driver gives no reading).
Utilisation decides nothing: it reads 100 % for up to half a second after a kill.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from gpuctl.node import processes
from gpuctl.node.clock import boottime
from gpuctl.node.holders import by_proc, container, described, device_files, named_by_nvml, patterns
from gpuctl.node.processes import Process, environ, namespace
from gpuctl.node.proof import MARKER, Proof
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.replies import Holder
from gpuctl.wire.samples import DeviceSample, Sample

POLL_S = 0.005  # a killed process frees 100 GiB in 0.12 to 0.16 s
SLOW_POLL_S = 0.05
FAST_FOR_S = 1.0
LOOK_S = 0.5  # between two looks at who holds it: those cost tens of milliseconds
GHOST_S = 1.0
SLACK_MIB = 64  # by which NVML's count of a GPU may exceed the sum of what it names
INITIAL_PID_NAMESPACE = "pid:[4026531836]"

FOREIGN, UNKILLABLE, OUTSIDE, UNREADABLE = "foreign_holder", "unkillable", "held_outside", "unreadable"


class Readings(Protocol):
    """What is needed of `Telemetry`."""

    error: Optional[str]

    @property
    def pid(self) -> Optional[int]: ...

    def sample(self) -> Sample: ...

    def memory(self, uuids: Sequence[str]) -> Dict[str, Optional[int]]: ...


@dataclass(frozen=True)
class Emptiness:
    empty: bool
    after_s: float
    failure: Optional[str] = None
    why: Optional[str] = None  # a sentence for people
    holders: List[Holder] = field(default_factory=list)  # those in the way
    spared: List[Dict[str, Any]] = field(default_factory=list)  # {"pid", "name", "why"}: those that block nothing
    ghost_utilisation: bool = False  # a GPU still read as busy when it was empty
    memory_mib: Dict[str, Optional[int]] = field(default_factory=dict)  # by index


def wait_empty(
    telemetry: Readings,
    node: NodeSpec,
    devices: Sequence[DeviceSample],
    proof: Optional[Proof],
    *,
    deadline_s: float,
    pause: Callable[[float], None],
    share: bool = False,
) -> Emptiness:
    """Polls until the devices are empty, or until it is certain that waiting is of no use, or the deadline.

    `share`: others may use them too; empty is then "nothing of ours left".
    """
    began = boottime()
    watch = _Watch(telemetry, node, devices, proof, share)
    looked_at = boottime()
    while True:
        memory = {} if share else telemetry.memory(watch.uuids)
        if not watch.ours_alive() and (share or watch.within(memory)):
            after_s = boottime() - began
            ghost = not share and _ghost(telemetry, watch.uuids, pause)
            return watch.success(memory, round(after_s, 3), ghost)
        passed = boottime() - began
        if boottime() - looked_at >= LOOK_S or passed >= deadline_s:
            watch.look()
            looked_at = boottime()
            if passed >= deadline_s or watch.certainly_foreign(memory):
                return watch.failure(memory, round(passed, 3))
        pause(POLL_S if passed < FAST_FOR_S else SLOW_POLL_S)


class _Watch:
    """One wait: what the devices may hold, and who holds it. `look` renews both."""

    def __init__(
        self,
        telemetry: Readings,
        node: NodeSpec,
        devices: Sequence[DeviceSample],
        proof: Optional[Proof],
        share: bool,
    ) -> None:
        self._telemetry = telemetry
        self._node = node
        self._proof = proof
        self._share = share
        self.uuids = [device.uuid for device in devices]
        self._index = {device.uuid: device.index for device in devices}
        self._ours: List[Process] = []
        self.look()

    def look(self) -> None:
        sample = self._telemetry.sample()
        self.devices = [device for device in sample.devices if device.uuid in self._index]
        self._ours = self._may_hold()
        run = self._proof.run if self._proof is not None else ""
        ours = {process.id.pid: run for process in self._ours}
        apart = [pid for pid in (self._telemetry.pid,) if pid is not None]
        self.holders = described(self._node, self.devices, ours, apart)

    def _may_hold(self) -> List[Process]:
        """Processes of ours that have a device file open, or may have: those that can't be looked into."""
        ours = self._proof.ours(processes.scan()) if self._proof is not None else []
        files = device_files(patterns(self._node))
        opened = by_proc(files, [process.id.pid for process in ours])
        return [process for process in ours if process.id.pid in opened or not _open_to_us(process)]

    def ours_alive(self) -> List[Process]:
        self._ours = [process for process in self._ours if processes.alive(process.id)]
        return self._ours

    def within(self, memory: Dict[str, Optional[int]]) -> bool:
        return all(self._excess(uuid, memory) == 0 for uuid in self.uuids)

    def _excess(self, uuid: str, memory: Dict[str, Optional[int]]) -> Optional[int]:
        """MiB above what the device may hold; None where that can't be known."""
        device = next((device for device in self.devices if device.uuid == uuid), None)
        used = memory.get(uuid)
        if used is None:
            # Some GPUs never say how much (unified memory). Where the driver answers all else and names nobody there,
            # nobody is there.
            silent = device is not None and device.error is None and device.memory_used_mib is None
            return 0 if silent and device is not None and device.processes == [] else None
        return max(0, used - self._node.idle_mib - self._protected_mib(device))

    def _protected_mib(self, device: Optional[DeviceSample]) -> int:
        pids = {holder.pid for holder in self.holders if holder.protected and holder.ours is None}
        return sum(process.used_mib or 0 for process in (device and device.processes) or [] if process.pid in pids)

    def _foreign(self) -> List[Holder]:
        """Those that NVML names on these devices and that are neither ours nor protected."""
        return [holder for holder in self.holders if holder.gpus and holder.ours is None and not holder.protected]

    def certainly_foreign(self, memory: Dict[str, Optional[int]]) -> bool:
        """Nothing of ours is left, and living processes of others account for all that is still there."""
        if self.ours_alive() or self._share:
            return False
        pids = {holder.pid for holder in self._foreign()}
        for device in self.devices:
            excess = self._excess(device.uuid, memory)
            theirs = sum(process.used_mib or 0 for process in device.processes or [] if process.pid in pids)
            if excess is None or excess > theirs + SLACK_MIB:
                return False
        return bool(pids)

    def success(self, memory: Dict[str, Optional[int]], after_s: float, ghost: bool) -> Emptiness:
        spared: List[Dict[str, Any]] = [
            {"pid": holder.pid, "name": holder.name, "why": self._why_spared(holder)}
            for holder in self.holders
            if holder.ours is None
        ]
        return Emptiness(True, after_s, spared=spared, ghost_utilisation=ghost, memory_mib=self._by_index(memory))

    def _why_spared(self, holder: Holder) -> str:
        if holder.protected:
            return "is protected"
        if self._share and holder.gpus:
            return "is not of this run, and the run shares its GPUs"
        return "has device files open, but no memory on these GPUs"

    def failure(self, memory: Dict[str, Optional[int]], after_s: float) -> Emptiness:
        failure, why, holders = self._diagnosis(memory)
        return Emptiness(False, after_s, failure, why, holders, memory_mib=self._by_index(memory))

    def _diagnosis(self, memory: Dict[str, Optional[int]]) -> Tuple[str, str, List[Holder]]:
        if self.ours_alive():
            pids = {process.id.pid for process in self._ours}
            holders = [holder for holder in self.holders if holder.pid in pids]
            return UNKILLABLE, "; ".join(_why_unkillable(process) for process in self._ours), holders
        excess = {uuid: self._excess(uuid, memory) for uuid in self.uuids}
        unread = [str(self._index[uuid]) for uuid, mib in excess.items() if mib is None]
        if unread:
            errors = [error for error in (*(device.error for device in self.devices), self._telemetry.error) if error]
            return UNREADABLE, f"no memory reading of GPU {', '.join(unread)}: {[*errors, 'NVML gives none'][0]}", []
        there = ", ".join(f"GPU {self._index[uuid]} {mib} MiB" for uuid, mib in excess.items() if mib)
        foreign = self._foreign()
        if foreign:
            return FOREIGN, f"held by others: {there}: {'; '.join(map(_whose, foreign))}", foreign
        candidates = [holder for holder in self.holders if holder.ours is None and not holder.protected]
        dead = [pid for pid in sorted(named_by_nvml(self.devices)) if not _lives(pid)]
        if candidates and (dead or namespace(os.getpid()) == INITIAL_PID_NAMESPACE):
            under = f" under a process that has ended ({', '.join(map(str, dead))})" if dead else ""
            return FOREIGN, f"in use{under}: {there}; perhaps by {'; '.join(map(_whose, candidates))}", candidates
        return OUTSIDE, f"in use: {there}, by no process that can be seen from here: {_where_else()}", candidates

    def _by_index(self, memory: Dict[str, Optional[int]]) -> Dict[str, Optional[int]]:
        return {str(self._index[uuid]): mib for uuid, mib in memory.items()}


def _ghost(telemetry: Readings, uuids: Sequence[str], pause: Callable[[float], None]) -> bool:
    """Whether a GPU still reads as busy after waiting a moment for it."""
    deadline = boottime() + GHOST_S
    while any(device.utilisation for device in telemetry.sample().devices if device.uuid in uuids):
        if boottime() >= deadline:
            return True
        pause(SLOW_POLL_S)
    return False


def _lives(pid: int) -> bool:
    process = processes.find(pid)
    return process is not None and process.alive


def _open_to_us(process: Process) -> bool:
    return os.access(f"/proc/{process.id.pid}/fd", os.R_OK)


def _why_unkillable(process: Process) -> str:
    named = f"{process.comm} (pid {process.id.pid})"
    if process.uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        return f"{named} runs as another user, whom we may not signal"
    now = processes.find(process.id.pid)
    if now is not None and now.state == "D":
        return f"{named} is in uninterruptible sleep (D), inside the driver or a file system: no signal ends it"
    return f"{named} still lives after SIGKILL"


def _whose(holder: Holder) -> str:
    inside = container(holder.pid)
    run = (environ(holder.pid) or {}).get(MARKER)
    facts = [
        f"pid {holder.pid}",
        f"user {holder.user}",
        *([f"container {inside}"] if inside and inside != container(os.getpid()) else []),
        *([f"run {run}"] if run else []),
        *([f"{holder.used_mib} MiB"] if holder.used_mib is not None else []),
    ]
    return f"{holder.name} ({', '.join(facts)})"


def _where_else() -> str:
    if namespace(os.getpid()) != INITIAL_PID_NAMESPACE:
        return "outside this container, on its host or in another one"
    if os.geteuid() != 0:
        return "another user's process, or one in a container, which only root sees"
    return "a driver that has not let go of it, or a virtual machine"
