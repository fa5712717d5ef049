"""The verb `gpus`: what each GPU reads now, who uses it, and which run has it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from gpuctl.node import program
from gpuctl.node.clock import boottime
from gpuctl.node.emptiness import Readings
from gpuctl.node.folders import StateFolder
from gpuctl.node.holders import described
from gpuctl.node.leases import Lease, Leases
from gpuctl.node.link import Link
from gpuctl.node.ownership import owners
from gpuctl.node.processes import scan
from gpuctl.node.telemetry import Telemetry
from gpuctl.node.waiter import Waiter
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.replies import DeviceRow, Holder
from gpuctl.wire.samples import DeviceSample


def answer_gpus(node: NodeSpec, link: Link, *, follow: bool, every_s: float) -> None:
    """One answer, or one every `every_s` seconds until nobody reads them any more."""
    leases = Leases(node)
    waiter = Waiter()
    try:
        with Telemetry(node, program.argv("sample")) as telemetry:
            while True:
                due = boottime() + every_s
                link.send(link.during(lambda: gpus(node, telemetry, leases.held())))
                if not follow:
                    return
                while boottime() < due:
                    link.wait(waiter, due - boottime())
    finally:
        waiter.close()


def gpus(node: NodeSpec, telemetry: Readings, held: Dict[str, List[Lease]]) -> Dict[str, Any]:
    sample = telemetry.sample()
    devices = [device for device in sample.devices if node.gpus is None or device.index in node.gpus]
    rows = device_rows(node, devices, held, telemetry.pid)
    return {"devices": [row.to_json() for row in rows], "driver": sample.driver, "error": sample.error}


def device_rows(
    node: NodeSpec, devices: Sequence[DeviceSample], held: Dict[str, List[Lease]], sampler: Optional[int] = None
) -> List[DeviceRow]:
    """Each device with its leases and those that NVML names on it. A holder of device files whom NVML names nowhere
    may use any or none: it is shown where there is but one device, else nowhere."""
    owner = owners(StateFolder(node), scan())
    holders = described(node, devices, owner, [] if sampler is None else [sampler])
    return [_row(device, holders, held.get(device.uuid, []), alone=len(devices) == 1) for device in devices]


def _row(device: DeviceSample, holders: Sequence[Holder], leases: Sequence[Lease], *, alone: bool) -> DeviceRow:
    return DeviceRow(
        device=device,
        leases=[lease.run for lease in leases],
        lease_users=[lease.user for lease in leases],
        holders=[holder for holder in holders if device.index in holder.gpus or (alone and not holder.gpus)],
    )
