"""A run that shares its GPUs, after memory ran out because of others: is there room for it beside them now?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from gpuctl.watchdog.policy import held_otherwise
from gpuctl.wire.incidents import Incident
from gpuctl.wire.ledger import OUT_OF_MEMORY

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor

_MIB = 1 << 20


def lack_of_room(supervisor: Supervisor) -> Optional[str]:
    """What its last attempt needed and there is not, in words. None: there is room, or nobody knows how much it needs,
    or a person asked for this attempt."""
    record = supervisor.record
    incident = record.attempts[-1].incident if record.attempts else None
    if not supervisor.spec.share or incident is None or (record.relaunch or {}).get("requested"):
        return None
    if incident.cls not in OUT_OF_MEMORY or held_otherwise(incident, record.attempts) is None:
        return None
    needed = _needed_bytes(incident)
    devices = supervisor.placement.devices
    if needed is None or not devices or supervisor.telemetry is None:
        return None
    if incident.gpu is not None and incident.gpu < len(devices):  # as its process counts them
        devices = [devices[incident.gpu]]
    used = supervisor.telemetry.memory([device.uuid for device in devices])
    for device in devices:
        total_mib, used_mib = device.memory_total_mib, used.get(device.uuid)
        if total_mib is not None and used_mib is not None and (total_mib - used_mib) * _MIB < needed:
            return (
                f"others hold {used_mib / 1024:.1f} of {total_mib / 1024:.1f} GiB of GPU {device.index}, "
                f"and it needs {needed / 2**30:.1f}"
            )
    return None


def _needed_bytes(incident: Incident) -> Optional[int]:
    """What the process that failed had, and what it asked for then."""
    for evidence in incident.evidence:
        own = evidence.in_use_bytes if evidence.in_use_bytes is not None else evidence.allocated_bytes
        if own is not None and evidence.requested_bytes is not None:
            return own + evidence.requested_bytes
    return None
