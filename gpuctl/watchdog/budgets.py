"""How often something may be tried again, how soon, and from where: what the past attempts leave over.

Pure: the history is data. A person's relaunch begins every budget anew; so does, for a service, an hour of running.
"""

from __future__ import annotations

import zlib
from typing import List, Optional, Sequence, Set, Tuple

from gpuctl.wire.incidents import AttemptRecord
from gpuctl.wire.runspec import Relaunches, RunSpec

MIN_UPTIME_S = 60.0
"""An attempt that fails so soon after it was ready, without any progress, got nowhere: what it started from may be at
fault."""
RENEWED_AFTER_S = 3600.0
"""A service that was ready for so long was well: what fails then is a new story."""
MOST_IN_VAIN = 3
"""Relaunches in a row that got nowhere, whatever each died of. A larger budget of the job's own is above it."""
MOST_STEPS_BACK = 3
"""Checkpoints in a row that are given up."""
LONGEST_BACKOFF_S = 3600.0

BLAMES_CHECKPOINT = ("code_error", "unknown", "device_assert", "cuda_illegal_access", "nan_loss", "thread_died")
"""Classes that a damaged checkpoint can look like, where an attempt died of them soon after resuming."""


def since_request(history: Sequence[AttemptRecord]) -> List[AttemptRecord]:
    """The attempts since a person last asked for one."""
    start = max((index for index, record in enumerate(history) if record.requested), default=0)
    return list(history[start:])


def counted(spec: RunSpec, history: Sequence[AttemptRecord]) -> List[AttemptRecord]:
    """The attempts that budgets count. Where nothing ever shows that a service is ready, all of its time counts."""
    since = since_request(history)
    if spec.type != "service":
        return since
    shows = spec.watch.ready is not None or _shows_ready(history)
    ran = [_ran_s(record) if record.loading_s is not None or shows else record.duration_s or 0.0 for record in since]
    return since[max((index for index, seconds in enumerate(ran) if seconds >= RENEWED_AFTER_S), default=0) :]


def _shows_ready(history: Sequence[AttemptRecord]) -> bool:
    """Whether it can be seen of this run that it is ready: then an attempt that was not so loaded until its end."""
    return any(record.loading_s is not None for record in history)


def _ran_s(record: AttemptRecord) -> float:
    """Beyond loading."""
    return max(0.0, (record.duration_s or 0.0) - record.loading_s) if record.loading_s is not None else 0.0


def in_vain(record: AttemptRecord) -> bool:
    """Whether the attempt got nowhere: it never progressed, and was never seen to be ready, or died soon after."""
    return (
        not record.progressed
        and (record.duration_s is not None or record.loading_s is None)
        and (_ran_s(record) < MIN_UPTIME_S)
    )


def in_a_row(history: Sequence[AttemptRecord]) -> int:
    """How many of the last attempts got nowhere."""
    count = 0
    for record in reversed(history):
        if not in_vain(record):
            break
        count += 1
    return count


def pause_s(spec: RunSpec, budget: Relaunches, cls: str, history: Sequence[AttemptRecord]) -> float:
    """The backoff: doubled for each failure of this class in a row that came within the minimum uptime, and up to a
    quarter more, so that what failed together does not return together. The same run always waits the same."""
    early = 0
    for record in reversed(history):
        short = record.duration_s is None or record.duration_s < MIN_UPTIME_S
        if record.incident is None or record.incident.cls != cls or not short:
            break
        early += 1
    pause = min(budget.backoff_s * 2.0 ** min(max(0, early - 1), 30), max(LONGEST_BACKOFF_S, budget.backoff_s))
    return round(pause * jitter(f"{spec.run}/{len(history)}"), 3)


def jitter(seed: str) -> float:
    """From 1 to 1.25, by the seed alone: a replay decides as the run did."""
    return 1 + (zlib.crc32(seed.encode()) % 1000) / 4000


def spoils_checkpoint(record: AttemptRecord, history: Sequence[AttemptRecord]) -> bool:
    """Whether the end of the attempt speaks against the checkpoint that it went on from: it came while that was loaded,
    however long it takes, or soon after."""
    if record.resumed_from is None or record.incident is None:
        return False
    if _damaged(record):
        return not record.progressed
    if record.loading_s is None and not _shows_ready(history):
        soon = record.duration_s is not None and record.duration_s < MIN_UPTIME_S
    else:
        soon = record.duration_s is not None and _ran_s(record) < MIN_UPTIME_S
    return record.incident.cls in BLAMES_CHECKPOINT and soon and not record.progressed


def spoiled(history: Sequence[AttemptRecord], *, anew: bool = False) -> Set[Tuple[str, Optional[float]]]:
    """The checkpoints (path, time) that no attempt should go on from any more. `anew`: a person asks for the next one;
    then only what was plainly damaged stays given up: the rest may have been the program's fault, and mended."""
    recent = 0 if anew else len(since_request(history))
    return {
        (record.resumed_from, record.resumed_written)
        for age, record in enumerate(reversed(history))
        if record.resumed_from is not None and spoils_checkpoint(record, history) and (age < recent or _damaged(record))
    }


def _damaged(record: AttemptRecord) -> bool:
    return record.incident is not None and record.incident.cls == "checkpoint_corrupt"


def steps_back(history: Sequence[AttemptRecord]) -> int:
    """How many of the last attempts were ended by the checkpoint that they went on from."""
    count = 0
    for record in reversed(history):
        if not spoils_checkpoint(record, history):
            break
        count += 1
    return count
