"""GPU memory as PyTorch sees it: a context, what its caching allocator holds, and its words when there is no more.

Every number in the message is this process's own reckoning, so they add up as PyTorch's do: capacity = free + this
process + others, and this process = context + allocated + reserved but unallocated.
"""

from __future__ import annotations

import os
from typing import Dict

from gpuctl.simulation.devices import FOLDER_VARIABLE, Context, DeviceFull, SimulatedGpus, visible

MIB = 1 << 20
GIB = 1 << 30

CONTEXT_MIB = 518  # what an open context costs before the first tensor
BLOCK_MIB = 2  # the allocator asks the driver for multiples of this

ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


class OutOfMemoryError(RuntimeError):
    """PyTorch's, by its name in a traceback too."""


OutOfMemoryError.__module__ = "torch"


class Gpu:
    """One of the GPUs that this process sees, by its own number: GPU 0 of a process may be any card."""

    def __init__(self, number: int = 0, *, split_mib: int = 0) -> None:
        """`split_mib`: what the allocator has split off its blocks and can neither use nor give back."""
        gpus = SimulatedGpus(os.environ[FOLDER_VARIABLE])
        indices = visible(os.environ, gpus)
        if number >= len(indices):
            raise RuntimeError("No CUDA GPUs are available" if not indices else "CUDA error: invalid device ordinal")
        self.number = number
        self._gpus = gpus
        self._allocated: Dict[str, int] = {}  # MiB, by what it is for
        self._split_mib = split_mib
        try:
            self._context = Context(gpus, indices[number], CONTEXT_MIB + split_mib)
        except DeviceFull:
            raise RuntimeError("CUDA error: out of memory") from None  # what the driver says, before there is PyTorch

    @property
    def capacity_bytes(self) -> int:
        return self._gpus.capacity_mib * MIB

    @property
    def free_bytes(self) -> int:
        return self._gpus.free_mib(self._context.index) * MIB

    @property
    def allocated_bytes(self) -> int:
        return sum(self._allocated.values()) * MIB

    @property
    def used_bytes(self) -> int:
        return self._context.holding.mib * MIB

    def held_mib(self, what: str) -> int:
        return self._allocated.get(what, 0)

    def allocate(self, what: str, size_bytes: int) -> None:
        """Holds this much for `what`, beside what is held for it already."""
        mib = -(-size_bytes // (BLOCK_MIB * MIB)) * BLOCK_MIB
        try:
            self._context.grow(mib)
        except DeviceFull:
            raise OutOfMemoryError(self._message(size_bytes)) from None
        self._allocated[what] = self._allocated.get(what, 0) + mib

    def free(self, what: str) -> None:
        self._context.shrink(self._allocated.pop(what, 0))

    def load(self, power: float, utilisation: int = 100) -> None:
        """How the work loads the GPU from now on: a share of the power limit, and percent."""
        self._context.load(power, utilisation)

    def _message(self, size_bytes: int) -> str:
        others = [held for held in self._gpus.holdings(self._context.index) if held.pid != self._context.holding.pid]
        held = "".join(f"Process {other.pid} has {size(other.mib * MIB)} memory in use. " for other in others)
        return (
            f"CUDA out of memory. Tried to allocate {size(size_bytes)}."
            f" GPU {self.number} has a total capacity of {size(self.capacity_bytes)}"
            f" of which {size(self.free_bytes)} is free. {held}"
            f"Including non-PyTorch memory, this process has {size(self.used_bytes)} memory in use."
            f" Of the allocated memory {size(self.allocated_bytes)} is allocated by PyTorch,"
            f" and {size(self._split_mib * MIB)} is reserved by PyTorch but unallocated. {ADVICE}"
        )


def size(size_bytes: int) -> str:
    """A size as PyTorch prints it."""
    for unit, divisor in (("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if size_bytes > divisor:
            return f"{size_bytes / divisor:.2f} {unit}"
    return f"{size_bytes} bytes"
