"""The state folder of simulated GPUs.

    dev/nvidiactl, dev/nvidia0…, dev/nvidia-uvm   plain files: fuser and /proc see who has them open
    contexts/<index>/<pid>-<random>               one file per process and GPU: what it holds there, how it computes
    vmstat                                        what the simulated machine's kernel counts: its OOM kills
    locks/<index>                                 held for a moment by who allocates: two never get the same last MiB
    faults.json                                   optional, for trials: what is wrong with the driver or a GPU

A context exists as long as some process has its file open with the lock on it. A flock belongs to the open file, which
fork shares and exec closes, so the kernel itself gives memory back at the moment at which a driver would: when the last
process that has the context is gone, by whatever signal, and not before.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, Optional

from gpuctl.wire.nodespec import NodeSpec, Simulate

FOLDER_VARIABLE = "GPUCTL_SIMULATION"
"""Names the state folder to a workload."""

DRIVER_SHARE = 0.0065
"""Of a GPU's memory, what the driver keeps: the part of NVML's total that CUDA never offers (94.97 of 95.59 GiB)."""

RECORD_BYTES = 256
"""A context's record is written by one pwrite of this length, so that a reader never sees half of one."""


class DeviceFull(Exception):
    """An allocation that did not fit."""

    def __init__(self, index: int, requested_mib: int, free_mib: int) -> None:
        super().__init__(f"GPU {index}: {requested_mib} MiB asked for, {free_mib} MiB free")
        self.index = index
        self.requested_mib = requested_mib
        self.free_mib = free_mib


@dataclass(frozen=True)
class Holding:
    """What one process holds on one GPU, and how its work loads it. `pid` is who made the context, perhaps dead."""

    pid: int
    mib: int
    power: float = 0.17  # of the limit: an open context that runs nothing
    utilisation: int = 0


def resolved(node: NodeSpec) -> NodeSpec:
    """The node with its simulated GPUs' folder made and named, and its device files there. Others: as they are.

    Whoever acts on a node begins with this, so that nobody else needs to know where a simulation lives.
    """
    if node.simulate is None:
        return node
    folder = node.simulate.folder or os.path.join(node.state_dir, "simulated", node.name)
    home = pwd.getpwuid(os.getuid()).pw_dir
    below_home = folder[2:] if folder.startswith("~/") else folder
    gpus = SimulatedGpus.make(os.path.join(home, below_home), node.simulate)
    return replace(
        node,
        simulate=replace(node.simulate, folder=gpus.folder),
        devices=[os.path.join(gpus.folder, "dev", "nvidia*")],
    )


def simulated(node: NodeSpec) -> SimulatedGpus:
    """The GPUs of a simulated node."""
    simulate = resolved(node).simulate
    if simulate is None or simulate.folder is None:
        raise ValueError(f"{node.name} has no simulated GPUs")
    return SimulatedGpus(simulate.folder)


class SimulatedGpus:
    """The GPUs of one state folder."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        with open(os.path.join(self.folder, "simulation.json"), encoding="utf-8") as file:
            self.shape = Simulate.from_json(json.load(file))

    @classmethod
    def make(cls, folder: str, shape: Simulate) -> SimulatedGpus:
        """Makes the folder, or brings an older one to this shape. Idempotent, and safe beside itself."""
        for index in range(shape.gpus):
            os.makedirs(os.path.join(folder, "contexts", str(index)), mode=0o700, exist_ok=True)
        for name in ("dev", "locks"):
            os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
        files = [f"dev/{name}" for name in device_names(shape.gpus)] + [f"locks/{n}" for n in range(shape.gpus)]
        for file in files:
            os.close(os.open(os.path.join(folder, file), os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
        if not os.path.exists(os.path.join(folder, "vmstat")):
            cls._count_oom_kills(folder, 0)
        text = json.dumps(replace(shape, folder=None).to_json())
        path = os.path.join(folder, "simulation.json")
        if _read(path) != text:
            aside = f"{path}.{os.getpid()}"
            with open(aside, "w", encoding="utf-8") as out:
                out.write(text)
            os.replace(aside, path)
        return cls(folder)

    @property
    def kernel_counters(self) -> str:
        """In the format of /proc/vmstat."""
        return self.path("vmstat")

    def note_oom_kill(self) -> None:
        """The simulated machine's kernel has killed a process, for want of main memory."""
        with self.allocating(0):
            count = int(_read(self.kernel_counters).split()[1])
            self._count_oom_kills(self.folder, count + 1)

    @staticmethod
    def _count_oom_kills(folder: str, count: int) -> None:
        path = os.path.join(folder, "vmstat")
        with open(f"{path}.{os.getpid()}", "w", encoding="ascii") as out:
            out.write(f"oom_kill {count}\n")
        os.replace(out.name, path)

    @property
    def capacity_mib(self) -> int:
        """What CUDA offers of a GPU's memory."""
        return self.shape.memory_mib - round(self.shape.memory_mib * DRIVER_SHARE)

    def uuid(self, index: int) -> str:
        """Differs from one folder to the next, so that leases of two simulated nodes never meet."""
        return f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{self.folder}#{index}')}"

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def faults(self) -> Mapping[str, Any]:
        """`error`: the driver answers nothing but this; `hang_s`: it is silent for so long; `lost`: these GPUs are;
        `outside_mib`: by index, memory that no visible process holds; `xids`: [number, index] of each, a batch
        per new text."""
        text = _read(self.path("faults.json"))
        return json.loads(text) if text else {}

    def holdings(self, index: int) -> List[Holding]:
        """What living processes hold on a GPU. Takes no lock: a stopped allocator must not stop the telemetry."""
        folder = self.path("contexts", str(index))
        found = (_living(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name[0] != ".")
        return [holding for holding in found if holding is not None]

    def used_mib(self, index: int) -> int:
        outside = self.faults().get("outside_mib", {}).get(str(index), 0)
        return sum(holding.mib for holding in self.holdings(index)) + int(outside)

    def free_mib(self, index: int) -> int:
        return max(0, self.capacity_mib - self.used_mib(index))

    @contextmanager
    def allocating(self, index: int) -> Iterator[None]:
        lock = os.open(self.path("locks", str(index)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class Context:
    """One process's hold on one GPU, like a CUDA context: closed with the last process that has it open.

    Opens the files of all GPUs, as CUDA does even where only one is visible.
    """

    def __init__(self, gpus: SimulatedGpus, index: int, mib: int = 0) -> None:
        self.gpus = gpus
        self.index = index
        self.holding = Holding(os.getpid(), 0)
        self._devices = [
            os.open(gpus.path("dev", name), os.O_RDONLY | os.O_CLOEXEC) for name in device_names(gpus.shape.gpus)
        ]
        folder = gpus.path("contexts", str(index))
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        aside = os.path.join(folder, f".{name}")
        self._file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._write(self.holding)
        os.rename(aside, os.path.join(folder, name))  # seen from here on, and already locked
        try:
            self.grow(mib)
        except DeviceFull:
            self.close()
            raise

    def grow(self, mib: int) -> None:
        """Takes memory, or raises `DeviceFull` and takes none."""
        with self.gpus.allocating(self.index):
            free = self.gpus.free_mib(self.index)
            if mib > free:
                raise DeviceFull(self.index, mib, free)
            self._write(replace(self.holding, mib=self.holding.mib + mib))

    def shrink(self, mib: int) -> None:
        self._write(replace(self.holding, mib=max(0, self.holding.mib - mib)))

    def load(self, power: float, utilisation: int) -> None:
        """Declares how the work loads the GPU: a share of the power limit, and percent."""
        loaded = replace(self.holding, power=power, utilisation=utilisation)
        if loaded != self.holding:  # a real GPU's load costs its process no I/O
            self._write(loaded)

    def close(self) -> None:
        """Closes this process's descriptors; a forked child may still hold the context open."""
        for descriptor in [self._file, *self._devices]:
            os.close(descriptor)

    def _write(self, holding: Holding) -> None:
        record = json.dumps(holding.__dict__).encode().ljust(RECORD_BYTES)
        os.pwrite(self._file, record, 0)
        self.holding = holding


def device_names(gpus: int) -> List[str]:
    return ["nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(gpus))]


def visible(environ: Mapping[str, str], gpus: SimulatedGpus) -> List[int]:
    """The indices that CUDA_VISIBLE_DEVICES leaves a process; all where it is not set."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(gpus.shape.gpus))
    by_uuid: Dict[str, int] = {gpus.uuid(index): index for index in range(gpus.shape.gpus)}
    return [by_uuid[word] if word in by_uuid else int(word) for word in text.split(",") if word]


def _living(path: str) -> Optional[Holding]:
    """The context's holding, or None where nobody has it open any more; such a file is removed."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # another reader has removed it
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Holding(**json.loads(os.pread(file, RECORD_BYTES, 0)))
    else:
        _remove(path)
        return None
    finally:
        os.close(file)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return  # another reader was faster


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
