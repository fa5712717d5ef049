"""What the agent must know of the node that it runs on: the part of an inventory entry that matters there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, List, Mapping, Optional, Type

from gpuctl.wire.runspec import Callback
from gpuctl.wire.word import Word


@dataclass(frozen=True)
class Simulate(Word):
    """GPUs that exist only as files (see `gpuctl.simulation`). `folder` None: `<state_dir>/simulated/<node name>`."""

    gpus: int = 8
    memory_mib: int = 97887
    power_limit_w: int = 600
    model: str = "Simulated GPU"
    folder: Optional[str] = None


@dataclass(frozen=True)
class NodeSpec(Word):
    """Paths may begin with `~/`, the node user's home by the passwd entry."""

    name: str
    state_dir: str = "~/.gpuctl"
    lock_dir: str = "/run/lock/gpuctl"
    launcher: str = "nohup"
    gpus: Optional[List[int]] = None  # which cards are ours to use; None: all
    devices: List[str] = field(default_factory=lambda: ["/dev/nvidia*"])  # globs
    idle_mib: int = 0
    protect: List[str] = field(default_factory=list)  # process names never to end, beside the built-in ones
    nvml_library: Optional[str] = None
    simulate: Optional[Simulate] = None
    callback: Optional[Callback] = None
    gpu_hour_cost: Optional[float] = None

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"simulate": Simulate, "callback": Callback}
