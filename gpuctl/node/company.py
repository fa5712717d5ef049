"""Who else is on a run's GPUs: what an attempt shows about its values holds only where it was alone there.

NVML names pids as its own namespace counts them. So what it names says something only where the attempt's own
processes are among it; and a pid that nobody has here is nobody's: an inherited context keeps its dead parent's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Set

from gpuctl.node.processes import environ, find
from gpuctl.watchdog.advice import advise
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.ledger import OUT_OF_MEMORY
from gpuctl.wire.samples import DeviceSample

_MARK = "GPUCTL_RUN"


class Company:
    """Of one attempt, whose processes come from `roots`. What holds no more than `idle_mib` is no company."""

    def __init__(self, run: str, roots: Sequence[int] = (), *, idle_mib: int = 0) -> None:
        self._run = run
        self._roots = frozenset(roots)
        self._idle_mib = idle_mib
        self._ours: Set[int] = set()  # all that were seen, for a message that names one which is gone by now
        self.strangers: List[int] = []  # when one of the attempt's processes was last seen on its GPUs
        self.alone = True  # all the time

    def see(self, devices: Sequence[DeviceSample]) -> None:
        """The run's GPUs now."""
        held: Dict[int, int] = {}
        for device in devices:
            for process in device.processes or []:
                used_mib = process.used_mib if process.used_mib is not None else self._idle_mib + 1
                held[process.pid] = max(used_mib, held.get(process.pid, 0))
        ours = {pid for pid in held if self._is_ours(pid)}
        if not ours:
            return
        self._ours |= ours
        others = [pid for pid, mib in sorted(held.items()) if pid not in ours and mib > self._idle_mib]
        self.strangers = [pid for pid in others if find(pid) is not None]
        self.alone = self.alone and not self.strangers

    def about(self, incident: Incident) -> Incident:
        """The incident with what is known of the processes that its message names, and of those that it does not."""
        if incident.cls not in OUT_OF_MEMORY:
            return incident
        told = replace(incident, evidence=[self._marked(each) for each in incident.evidence], strangers=self.strangers)
        return told if told.evidence == incident.evidence else replace(told, advice=advise(told))

    def _marked(self, evidence: Evidence) -> Evidence:
        others = [{**other, "ours": 1} if self._is_ours(other["pid"]) else other for other in evidence.others]
        return replace(evidence, others=others)

    def _is_ours(self, pid: int) -> bool:
        """By descent, or by the mark in its environment: enough to judge by, though no proof to kill by."""
        if pid in self._ours or pid in self._roots:
            return True
        process = find(pid)
        if process is None:
            return False
        if (environ(pid) or {}).get(_MARK) == self._run:
            return True
        while process is not None and process.ppid > 1:
            if process.ppid in self._roots:
                return True
            process = find(process.ppid)
        return False
