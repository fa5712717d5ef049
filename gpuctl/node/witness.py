"""What the machine has to say about an attempt beside its log: the kernel's log and its counters of OOM kills, Xids as
NVML reports them, disks. All of it is evidence; `gpuctl.watchdog.facts` judges.

What stood at the attempt's start is kept in its folder, so that a later supervisor can tell what has risen since.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from gpuctl.node.attempt import Attempt
from gpuctl.node.clock import boottime
from gpuctl.node.folders import write_json
from gpuctl.node.kernel import KernelLog, OomKill, Report, XidReport, pci_of
from gpuctl.node.oom_kills import MACHINE, RECENT_S, OomCounters
from gpuctl.node.room import Disks
from gpuctl.watchdog.xids import class_of, meaning
from gpuctl.wire.incidents import Evidence, Exit
from gpuctl.wire.samples import DeviceSample, Xid

KEPT = "kernel.json"
LOOK_S = 5.0
SAME_S = 10.0  # NVML and the kernel's log tell of one error within this time of each other
NONE_COUNTED = "the kernel counted no OOM kill on this machine meanwhile"
OF_OTHERS = "the OOM kills that the kernel counted meanwhile were of other processes"
DISKS_S = 1.0  # that disks have to answer when an attempt has ended


def keep(attempt_dir: str, machines: Sequence[str]) -> None:
    """Notes, before an attempt starts, what the kernel has counted and logged until now."""
    counters, log = OomCounters(machines=machines), KernelLog()
    counters.look(os.getpid(), boottime())  # the keeper, and the job below it, start in our cgroup
    write_json(os.path.join(attempt_dir, KEPT), {"oom_kills": counters.values(), "log_us": log.newest_us})
    log.close()


class Witness:
    """Of one attempt, whose job writes below `folders`. `shared`: other programs may use its GPUs too."""

    def __init__(
        self, attempt: Attempt, folders: Sequence[str], *, machines: Sequence[str] = (MACHINE,), shared: bool = False
    ) -> None:
        kept = _kept(attempt)
        self._job = attempt.job
        self._shared = shared
        self._counters = OomCounters(kept.get("oom_kills"), machines=machines)
        self._log = KernelLog(kept.get("log_us"))
        self._disks = Disks(folders)
        self._full: List[str] = []
        self._rises: Set[str] = set()
        self._kills: List[Tuple[float, Evidence]] = []
        self._index: Dict[str, int] = {}  # the run's GPUs, by PCI address
        self._told: Dict[Tuple[int, Optional[int]], Tuple[str, float]] = {}
        self._next_look = 0.0

    def know(self, devices: Sequence[DeviceSample]) -> None:
        """The run's GPUs: only their errors are told."""
        self._index.update((pci_of(device.pci), device.index) for device in devices if device.pci is not None)

    def look(self, at: float) -> List[Evidence]:
        """What is new, every few seconds."""
        if at < self._next_look:
            return []
        self._next_look = at + LOOK_S
        self._counters.look(self._job or os.getpid(), at)
        before, self._full = self._full, self._disks.full()
        found = [Evidence("disk_full", why, source="disk") for why in self._full if why not in before]
        own = [rise.text for rise in self._counters.rises(at) if rise.own and rise.text not in self._rises]
        self._rises.update(own)
        found += [Evidence("host_oom", text, source="counters") for text in own]
        return found + (self._read(at) if self._log.cheap else [])

    def xids(self, reported: Sequence[Xid], at: float) -> List[Evidence]:
        """Those that NVML has reported; as the kernel's log words them where it can be read, since it says more."""
        ours = [xid for xid in reported if xid.gpu in self._index.values()]
        logged = self._read(at) if ours and self._log.cheap else []
        told = [self._xid(xid.number, xid.gpu, "NVML", at) for xid in ours]
        return logged + [evidence for evidence in told if evidence is not None]

    def at_exit(self, exit: Exit, at: float) -> List[Evidence]:
        """All that may explain how it ended."""
        self._counters.look(self._job or os.getpid(), at)
        news = self._read(at)
        full = [Evidence("disk_full", why, source="disk") for why in self._disks.full(DISKS_S)]
        return [*self._oom_kills(exit, at), *news, *full]

    def _oom_kills(self, exit: Exit, at: float) -> List[Evidence]:
        """`host_oom` is an OOM kill, of whomever; `unknown` says that there was none, where that is certain."""
        kills = [kill for seen, kill in self._kills if self._is_job(kill.pid) or at - seen < RECENT_S]
        rises = self._counters.rises(at)
        counted = bool(kills or rises)
        if exit.signal == signal.SIGKILL and self._log.readable and self._log.pids_known:
            # The kernel's log would name the job's own process; where it does not, it was others that were killed.
            kills = [kill for kill in kills if self._is_job(kill.pid)]
            rises = [rise for rise in rises if rise.own or kills]
        kills.sort(key=lambda kill: not self._is_job(kill.pid))
        found = kills + [Evidence("host_oom", rise.text, source="counters") for rise in rises]
        if found or not self._counters.complete:
            return found
        return [Evidence("unknown", OF_OTHERS if counted else NONE_COUNTED, source="counters")]

    def _is_job(self, pid: Optional[int]) -> bool:
        return self._job is not None and pid == self._job.pid

    def close(self) -> None:
        self._log.close()

    def _read(self, at: float) -> List[Evidence]:
        found = [self._understood(report, at) for report in self._log.read()]
        return [evidence for evidence in found if evidence is not None]

    def _understood(self, report: Report, at: float) -> Optional[Evidence]:
        if isinstance(report, OomKill):
            whose = " (this attempt's first process)" if self._is_job(report.pid) else ""
            kill = Evidence("host_oom", f"{report.line}{whose}", source="kernel log", pid=report.pid)
            self._kills.append((at, kill))
            return None
        gpu = self._index.get(report.pci)
        if gpu is None:
            return None
        return self._xid(report.number, gpu, "kernel log", at, report)

    def _xid(
        self, number: int, gpu: Optional[int], source: str, at: float, report: Optional[XidReport] = None
    ) -> Optional[Evidence]:
        """None for noise, for what the other source has told already, and for a program's error on GPUs that others
        use too: nobody could say whose it was."""
        cls = class_of(number)
        if cls is None or (self._shared and cls != "xid_hw"):
            return None
        before, told_at = self._told.get((number, gpu), (source, at))
        if before != source and at - told_at < SAME_S:
            return None
        self._told[number, gpu] = (source, at)
        text = str(report.line) if report is not None else f"Xid {number} on GPU {gpu}: {meaning(number)}"
        pid = report.pid if report is not None else None
        return Evidence(cls, text[:1024], source=source, gpu=gpu, pid=pid, xid=number)


def _kept(attempt: Attempt) -> Dict[str, Any]:
    """What `keep` noted; nothing where an older supervisor began the attempt."""
    try:
        with open(os.path.join(attempt.folder.path, KEPT), encoding="utf-8") as file:
            kept: Dict[str, Any] = json.load(file)
            return kept
    except FileNotFoundError:
        return {}
