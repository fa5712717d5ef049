"""What an attempt's processes read, write and compute: the sign of life of a job that says nothing.

The kernel counts for each process, its ended threads and the children that it has waited for. The tree is walked by
/proc/PID/task/*/children from the keeper, to which orphans come back; a look costs some 9 µs a thread (21 ms for
eight ranks with 300 each), so it is only taken where a run has been quiet for a while.
"""

from __future__ import annotations

import os
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from gpuctl.node.processes import ProcessId, alive, children
from gpuctl.wire.samples import TreeIo

_TICKS_S = os.sysconf("SC_CLK_TCK")


class Counts(NamedTuple):
    """Since the process began. Bytes are None where its counters are closed to us."""

    read_bytes: Optional[int]
    written_bytes: Optional[int]
    cpu_s: float


class Tree:
    """An attempt's: what is below its keeper, and its first process with what is below that, should the keeper die."""

    def __init__(self, keeper: Optional[ProcessId], job: Optional[ProcessId] = None) -> None:
        self._keeper = keeper
        self._job = job
        self._before: Dict[ProcessId, Counts] = {}
        self._at: Optional[float] = None

    def look(self, at: float) -> Optional[TreeIo]:
        """What happened since the last look; None at the first one, and where the counters can't be read.

        What a process that has come since did counts whole: it began meanwhile.
        """
        before, since = self._before, self._at
        now = dict(self._counts())
        self._before, self._at = now, at
        readable = [counts for counts in now.values() if counts.read_bytes is not None]
        if since is None or (now and not readable):
            return None
        zero = Counts(0, 0, 0.0)
        pairs = [(counts, before.get(process, zero)) for process, counts in now.items()]
        return TreeIo(
            at,
            at - since,
            sum(max(0, (new.read_bytes or 0) - (old.read_bytes or 0)) for new, old in pairs),
            sum(max(0, (new.written_bytes or 0) - (old.written_bytes or 0)) for new, old in pairs),
            round(sum(max(0.0, new.cpu_s - old.cpu_s) for new, old in pairs), 2),
        )

    def forget(self) -> None:
        """Nobody looks for a while: the next look begins anew."""
        self._before, self._at = {}, None

    def _counts(self) -> Iterator[Tuple[ProcessId, Counts]]:
        waiting = children(self._keeper.pid) if self._keeper is not None and alive(self._keeper) else []
        if self._job is not None and self._job.pid not in waiting and alive(self._job):
            waiting.append(self._job.pid)
        seen = set(waiting)
        while waiting:
            pid = waiting.pop()
            found = counts_of(pid)
            if found is not None:
                yield found
            below = [child for child in children(pid) if child not in seen]
            seen.update(below)
            waiting += below


def counts_of(pid: int) -> Optional[Tuple[ProcessId, Counts]]:
    """None where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_S
    process = ProcessId(pid, int(fields[19]))
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            io = {name: int(value) for name, value in (line.split(b":") for line in file.read().splitlines())}
    except OSError:
        return process, Counts(None, None, cpu_s)
    # What goes through system calls and what reaches a disk are counted apart: mapped files have only the second.
    read = max(io.get(b"rchar", 0), io.get(b"read_bytes", 0))
    written = max(io.get(b"wchar", 0), io.get(b"write_bytes", 0))
    return process, Counts(read, written, cpu_s)
