"""Which machine this is, and which life of it: what tells a restart from a quiet night.

A restarted container keeps its host's boot id, and even the inode of its namespaces, so the start of PID 1 belongs to
the identity. The host name tells the machines apart that share a home over NFS.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from gpuctl.wire.word import Word


@dataclass(frozen=True)
class Machine(Word):
    host: str
    boot_id: str
    init_start: Optional[int] = None  # clock ticks; None where /proc hides PID 1 from us (hidepid)

    def elsewhere(self, other: Machine) -> bool:
        """Is `other` another machine? What runs there is shown, never judged, adopted or cleaned here."""
        return self.host != other.host

    def same_life(self, other: Machine) -> bool:
        """Is `other` this machine, not restarted since? A start of PID 1 that either can't see decides nothing."""
        starts = {self.init_start, other.init_start} - {None}
        return self.host == other.host and self.boot_id == other.boot_id and len(starts) < 2


def identity() -> Machine:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return Machine(host=os.uname().nodename, boot_id=boot_id, init_start=process_start(1))


def process_start(pid: int) -> Optional[int]:
    """A process's start in clock ticks since boot: with the pid it names the process. None if it can't be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name, in brackets, may itself hold spaces and brackets: what follows the last one is plain.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None
