"""From past attempts, this run's and the ledger's, to what the ladder wants to know."""

from __future__ import annotations

from statistics import median
from typing import List, Optional, Sequence

from gpuctl.watchdog.gpu_memory import held_by_others
from gpuctl.watchdog.ladder import Seen
from gpuctl.watchdog.ledger import standing
from gpuctl.wire.incidents import AttemptRecord, Incident
from gpuctl.wire.ledger import OUT_OF_MEMORY, LedgerEntry
from gpuctl.wire.runspec import OnOom


def counts(record: AttemptRecord) -> bool:
    """Has it shown that these values do not fit? Not where others held memory."""
    incident = record.incident
    if incident is None or incident.cls not in OUT_OF_MEMORY or not record.gpus_were_empty:
        return False
    return not (incident.evidence and held_by_others(incident.evidence[0]))


def seen_by(
    incident: Incident, on_oom: OnOom, since: Sequence[AttemptRecord], ledger: Sequence[LedgerEntry] = ()
) -> Seen:
    """`since`: this run's attempts that count; `ledger`: entries of its template, GPU model and number of GPUs."""
    fitted = [entry for entry in ledger if entry.fitted]
    read = [entry for entry in fitted if entry.peak_mib is not None]
    loaded = [entry.loaded_mib for entry in ledger if entry.loaded_mib is not None]
    totals = [entry.total_mib for entry in ledger if entry.total_mib is not None]
    return Seen(
        failed=[
            *(record.params for record in since if counts(record)),
            *(entry.params for entry in standing(ledger, on_oom)),
        ],
        fitted=[entry.params for entry in fitted],
        loading_s=_loading_s(since, ledger),
        work_s=_median([entry.duration_s for entry in fitted if entry.exit_code == 0]),
        peaks=[(entry.params, float(entry.peak_mib or 0)) for entry in read],
        loaded_mib=max(loaded, default=None),
        total_mib=max(totals, default=None),
        overdrawn=_overdrawn(incident),
    )  # fmt: skip


def _loading_s(since: Sequence[AttemptRecord], ledger: Sequence[LedgerEntry]) -> Optional[float]:
    """What an attempt takes before it shows whether its values fit: until it was ready, or it failed before that."""
    own = [record.loading_s if record.loading_s is not None else record.duration_s for record in since]
    known = [seconds for seconds in own if seconds is not None]
    return max(known) if known else _median([entry.loading_s for entry in ledger])


def _median(values: Sequence[Optional[float]]) -> Optional[float]:
    known: List[float] = [value for value in values if value is not None]
    return median(known) if known else None


def _overdrawn(incident: Incident) -> float:
    """How many times an empty GPU the request would have needed: no step that is smaller than that can do."""
    if not incident.requested_bytes or not incident.total_bytes:
        return 1.0
    return max(1.0, incident.requested_bytes / incident.total_bytes)
