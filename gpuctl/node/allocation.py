"""Which GPUs a run gets: those that it names, or the emptiest that are really free."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from gpuctl.node.leases import Lease
from gpuctl.node.refusal import BAD_USAGE, UNFIT, Refusal
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.samples import DeviceSample, Sample


class Busy(Exception):
    """Not enough GPUs are free now; `why` names who has them."""

    def __init__(self, why: str, uuids: Sequence[str]) -> None:
        super().__init__(why)
        self.why = why
        self.uuids = list(uuids)  # those that would do


def wanted(spec: RunSpec) -> Optional[int]:
    """How many, where the spec says a number or a list; None for all."""
    if isinstance(spec.gpus, list):
        return len(spec.gpus)
    return None if spec.gpus == "all" else int(spec.gpus)


def eligible(spec: RunSpec, node: NodeSpec, sample: Sample) -> List[DeviceSample]:
    """The devices that could do, free or not. Raises Refusal where the node can never give what is asked for."""
    devices = [device for device in sample.devices if node.gpus is None or device.index in node.gpus]
    if not devices:
        raise Refusal(
            UNFIT,
            f"node {node.name} has no GPU to use: {sample.error or 'none is listed'}",
            "`gpus: 0` runs a job without one; `gpuctl doctor` says more",
        )
    if isinstance(spec.gpus, list):
        by_index = {device.index: device for device in devices}
        missing = [index for index in spec.gpus if index not in by_index]
        if missing:
            raise Refusal(
                BAD_USAGE,
                f"node {node.name} has no GPU {', '.join(map(str, missing))}",
                f"it has {', '.join(map(str, sorted(by_index)))}",
            )
        devices = [by_index[index] for index in spec.gpus]
    count = wanted(spec)
    if count is not None and count > len(devices):
        raise Refusal(BAD_USAGE, f"{count} GPUs are asked for, node {node.name} has {len(devices)}", "")
    split = [device.index for device in devices if device.mig]
    if split:
        raise Refusal(UNFIT, f"GPU {', '.join(map(str, split))} of {node.name} is split by MIG", "choose others")
    return devices


def choose(spec: RunSpec, node: NodeSpec, sample: Sample, held: Dict[str, List[Lease]]) -> List[DeviceSample]:
    """The devices for a run, in PCI order. Raises Busy where they are taken, Refusal where they can never be given."""
    devices = eligible(spec, node, sample)
    taken = {device.uuid: _taken(device, spec, node, held) for device in devices}
    free = [device for device in devices if taken[device.uuid] is None]
    count = wanted(spec)
    count = len(devices) if count is None else count
    if len(free) < count:
        reasons = [f"GPU {device.index} {why}" for device in devices for why in [taken[device.uuid]] if why]
        raise Busy(
            f"{count} GPU{'s are' if count != 1 else ' is'} asked for, {len(free)} of {len(devices)} "
            f"{'are' if len(free) != 1 else 'is'} free on {node.name}: {'; '.join(reasons)}",
            [device.uuid for device in devices],
        )
    return sorted(sorted(free, key=_fullness)[:count], key=lambda device: device.index)


def _fullness(device: DeviceSample) -> Tuple[bool, int, int]:
    """Sorts the emptiest first. One that does not say what it holds is not known to be empty: it comes last."""
    return (device.memory_used_mib is None, device.memory_used_mib or 0, device.index)


def _taken(device: DeviceSample, spec: RunSpec, node: NodeSpec, held: Dict[str, List[Lease]]) -> Optional[str]:
    """Why this run can't have the device; None where it can."""
    if device.error:
        return f"is out of order: {device.error}"
    for lease in held.get(device.uuid, []):
        if lease.run != spec.run and not (spec.share and lease.share):
            return f"is held by run {lease.run} of {lease.user}"
    used = device.memory_used_mib
    if used is not None and used > node.idle_mib and not spec.share:
        holders = ", ".join(f"pid {process.pid}" for process in device.processes or [])
        return f"holds {used} MiB of {holders or 'a process that is not visible from here'}"
    return None
