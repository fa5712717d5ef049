"""From what was read (and how it ended, where that is known) to one incident: the root, not the cascade.

Of the clues that the job did not survive, the heaviest class decides, and of equals the first. What a job has moved on
from is no failure; a thread or a request that was lost, a GPU that reports faults, a loss that is NaN stay findings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional

from gpuctl.watchdog.advice import advise
from gpuctl.watchdog.gpu_memory import held_by_others, is_fragmented
from gpuctl.watchdog.reading import MOVED_ON, Clue, Reading
from gpuctl.watchdog.signatures import Weight
from gpuctl.wire.incidents import Evidence, Incident

_LASTING = ("xid_hw", "driver_mismatch", "thread_died")
"""Classes that are worth telling though the job goes on."""
_REDUCIBLE = ("gpu_oom", "gpu_oom_fragmentation")
_LAST, _NEAR = 4, 60  # lines after an exception that told no traceback: to the log's end, to a launcher's report
_KEPT = 8  # lines of evidence in an incident


def moved_since(reading: Reading, clue: Clue) -> bool:
    served = clue.scope == "process" and reading.answered - clue.answered >= MOVED_ON
    return served or reading.moves - clue.moves >= MOVED_ON


def root(reading: Reading, *, failed: bool = False) -> Optional[Clue]:
    """The clue that explains the end. `failed`: it is known that the attempt failed, so a hint will do."""
    open_clues = [clue for clue in reading.clues if not moved_since(reading, clue) and clue.scope != "finding"]
    firm = [clue for clue in open_clues if not clue.hint and clue.weight > Weight.PROBE]
    best = max(firm, key=lambda clue: clue.weight, default=None)  # of equals the first
    if best is None or best.weight is Weight.LAUNCHER:
        best = _bare(reading, open_clues, best) or best
    if best is None:
        return _last_resort(reading, open_clues) if failed else None
    if best.weight < Weight.CAUSE:
        handled = [clue for clue in open_clues if clue.hint and clue.weight is Weight.CAUSE and clue.lines < best.lines]
        return handled[0] if handled else best
    return best


def _bare(reading: Reading, open_clues: List[Clue], launcher: Optional[Clue]) -> Optional[Clue]:
    """An exception without its traceback: the last thing said, or what a launcher's report follows."""
    end = launcher.lines if launcher else reading.lines
    bare = [clue for clue in open_clues if clue.bare and end - (_NEAR if launcher else _LAST) <= clue.lines <= end]
    return bare[0] if bare else None


def incident(reading: Reading, *, failed: bool = False) -> Optional[Incident]:
    """What the log shows: a failure, a finding (`fatal` False), or None."""
    clue = root(reading, failed=failed)
    if clue is None or (reading.ended_well and not failed and clue.scope != "thread"):
        lasting = finding(reading)
        return describe(reading, lasting, fatal=False) if lasting else None
    return describe(reading, clue, fatal=failed or _is_fatal(reading, clue))


def describe(reading: Reading, clue: Clue, *, fatal: bool) -> Incident:
    """The incident that this clue makes, with the numbers that the lines around it add."""
    cls = class_of(clue)
    evidence = replace(clue.evidence, cls=cls)
    phase = "load" if clue.phase == "warm" else clue.phase
    near = [other for other in reading.clues if other is not clue and not moved_since(reading, other)]
    if cls.startswith("gpu_oom"):
        for other in near:
            evidence = _filled(evidence, other.evidence) if other.evidence.cls.startswith("gpu_oom") else evidence
    others = [other.evidence for other in near if other.weight > Weight.PROBE][: _KEPT - 1]
    found = Incident(
        cls,
        fatal,
        phase,
        [evidence, *others],
        evidence.gpu,
        evidence.requested_bytes,
        evidence.total_bytes,
        evidence.free_bytes,
    )
    return replace(found, advice=advise(found))


def class_of(clue: Clue) -> str:
    cls = clue.evidence.cls
    if clue.scope == "thread" and cls == "code_error":
        return "thread_died"
    if cls != "gpu_oom":
        return cls
    if clue.phase == "load" and not (clue.said and clue.said.reduce is not None):
        return "gpu_oom_at_load"
    return "gpu_oom_fragmentation" if is_fragmented(clue.evidence) else "gpu_oom"


def may_reduce(clue: Clue) -> bool:
    """Would the same job with a smaller batch help?"""
    if clue.said and clue.said.reduce is not None:
        return clue.said.reduce
    return class_of(clue) in _REDUCIBLE and not held_by_others(clue.evidence)


def _is_fatal(reading: Reading, clue: Clue) -> bool:
    after = reading.lines - clue.lines
    if clue.scope == "thread":
        return after == 0 and class_of(clue) != "thread_died"
    if clue.scope == "request":
        ended = any(other.weight is Weight.LAUNCHER for other in reading.clues[reading.clues.index(clue) :])
        return ended or reading.served == clue.served
    return class_of(clue) != "thread_died"


def finding(reading: Reading) -> Optional[Clue]:
    """What is worth telling of a job that goes on."""
    for clue in reading.clues:
        lost = clue.scope == "thread" or (clue.scope == "request" and not clue.hint)
        if lost or (class_of(clue) in _LASTING and (clue.hint or moved_since(reading, clue))):
            return clue
    last = [clue for clue in reading.clues if clue.scope == "finding"]
    return last[0] if reading.nans >= 2 and last else None


def _last_resort(reading: Reading, open_clues: List[Clue]) -> Optional[Clue]:
    """The attempt failed and nothing firm says why: a hint, a probe, a finding, in this order."""
    hints = sorted(open_clues, key=lambda clue: -clue.weight)
    return hints[0] if hints else finding(reading)


def _filled(evidence: Evidence, other: Evidence) -> Evidence:
    names = ("gpu", "requested_bytes", "total_bytes", "free_bytes", "in_use_bytes", "allocated_bytes", "reserved_bytes")
    missing = {name: getattr(other, name) for name in names if getattr(evidence, name) is None}
    return replace(evidence, **missing)
