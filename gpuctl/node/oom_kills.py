"""Counters of OOM kills: which rose while an attempt ran, and whom they count beside it.

From the narrowest to the widest: the job's own cgroup (v2 `memory.events`, v1 `memory.oom_control`), under v2 the
cgroups around it, and `oom_kill` of /proc/vmstat, which counts the whole machine.
"""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from gpuctl.node.processes import ProcessId, find
from gpuctl.wire.nodespec import NodeSpec

RECENT_S = 120.0
"""A rise of a counter that counts neighbours too says something only shortly before the end; a large process needs a
while to die, and its parent to notice."""

MACHINE = "/proc/vmstat"
OWN, AROUND, EVERYTHING = "of its own cgroup", "of that cgroup, neighbours too", "of this machine, neighbours too"


class Rise(NamedTuple):
    text: str
    own: bool  # of a cgroup that the job itself is in


class _Counter:
    def __init__(self, path: str, counts: str, first: int) -> None:
        self.path = path
        self.counts = counts
        self.first = first
        self.last = first
        self.rose_at: Optional[float] = None

    def look(self, at: float) -> None:
        value = read(self.path)
        if value is not None and value > self.last:
            self.last, self.rose_at = value, at

    def rise(self, at: float) -> Optional[Rise]:
        if self.rose_at is None or (self.counts != OWN and at - self.rose_at > RECENT_S):
            return None
        text = f"{self.path}: oom_kill {self.first} → {self.last} (it counts the processes {self.counts})"
        return Rise(text, self.counts == OWN)


class OomCounters:
    """Of one attempt. `kept` are the values at its start, by path, where somebody else noted them. `machines`: which
    counters count for the whole machine."""

    def __init__(self, kept: Optional[Mapping[str, int]] = None, *, machines: Sequence[str] = (MACHINE,)) -> None:
        self._kept = dict(kept or {})
        self._machines = machines
        self._counters: Dict[str, _Counter] = {}

    def look(self, process: Union[ProcessId, int], at: float) -> None:
        """Reads them all; those of the cgroup that this process is in by now are added."""
        for path, counts in _around(process, self._machines):
            if path not in self._counters:
                first = self._kept.get(path, read(path))
                if first is not None:
                    self._counters[path] = _Counter(path, counts, first)
        for counter in self._counters.values():
            counter.look(at)

    def values(self) -> Dict[str, int]:
        return {path: counter.last for path, counter in self._counters.items()}

    def rises(self, at: float) -> List[Rise]:
        """The narrowest first."""
        order = (OWN, AROUND, EVERYTHING)
        counters = sorted(self._counters.values(), key=lambda counter: order.index(counter.counts))
        return [rise for rise in (counter.rise(at) for counter in counters) if rise is not None]

    @property
    def complete(self) -> bool:
        """Is the whole machine counted? Then no rise means that the kernel killed nobody for memory."""
        return MACHINE in self._counters


def machine_counters(node: NodeSpec) -> List[str]:
    """Where a node's kernel counts its OOM kills. A simulated node has a simulated kernel too."""
    if node.simulate is None:
        return [MACHINE]
    from gpuctl.simulation.devices import simulated  # only simulated nodes pay for it

    return [MACHINE, simulated(node).kernel_counters]


def read(path: str) -> Optional[int]:
    """The file's `oom_kill`; None where it has none, as with kernels before 4.13."""
    try:
        with open(path, "rb") as file:
            for line in file:
                name, _, value = line.partition(b" ")
                if name == b"oom_kill":
                    return int(value)
    except OSError:
        pass
    return None


def _around(process: Union[ProcessId, int], machines: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """Path and reach of every counter that a kill of this process would raise."""
    if isinstance(process, int):
        yield from _of_cgroups(process)
    else:
        found = find(process.pid)
        if found is not None and found.id == process and found.alive:
            yield from _of_cgroups(process.pid)
    for path in machines:
        yield path, EVERYTHING


def _of_cgroups(pid: int) -> Iterator[Tuple[str, str]]:
    mounts = _mounts()
    for controllers, path in _memberships(pid):
        if controllers == "" and "v2" in mounts:
            folder, top = _below(mounts["v2"], path), mounts["v2"][0]
            counts = OWN
            while folder.startswith(top):
                yield os.path.join(folder, "memory.events"), counts
                folder, counts = os.path.dirname(folder), AROUND
        elif "memory" in controllers.split(",") and "memory" in mounts:
            yield os.path.join(_below(mounts["memory"], path), "memory.oom_control"), OWN


def _memberships(pid: int) -> List[Tuple[str, str]]:
    """Its cgroups as (controllers, path); the controllers of v2's are the empty text."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [(controllers, path) for _, controllers, path in fields]


def _mounts() -> Dict[str, Tuple[str, str]]:
    """Where v2, and v1's memory controller, are mounted: (mount point, the cgroup that is its root)."""
    found: Dict[str, Tuple[str, str]] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            _, _, _, root, point = left.split(" ")[:5]
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2":
                found.setdefault("v2", (point, root))
            elif kind == "cgroup" and "memory" in options.strip().split(","):
                found.setdefault("memory", (point, root))
    return found


def _below(mount: Tuple[str, str], path: str) -> str:
    """The folder of a cgroup. In a container the mount's root may be that cgroup, or lie below what /proc says."""
    point, root = mount
    if path == root or path.startswith("/.."):
        return point
    if root != "/" and path.startswith(root + "/"):
        path = path[len(root) :]
    folder = os.path.join(point, path.lstrip("/")).rstrip("/")
    return folder if os.path.isdir(folder) else point
