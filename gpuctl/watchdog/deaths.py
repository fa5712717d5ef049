"""A thread or rank that died while its process lives: can the rest go on without it?

Its traceback alone proves nothing: many jobs do without an uploader, and what a rank prints it may have caught. The end
is certain only for work that stands still and gives no sign of life either: I/O, GPUs that work; and, unless a GPU's
failure was the cause, output (who waits for a dead drafter may well print that it waits). All else is told, no more.
"""

from __future__ import annotations

from typing import Optional, Set

from gpuctl.watchdog import verdict
from gpuctl.watchdog.pace import Pace
from gpuctl.watchdog.reading import MOVED_ON, Clue, Reading
from gpuctl.watchdog.signatures import Weight
from gpuctl.watchdog.stall import LOOK_S
from gpuctl.watchdog.vitals import Vitals
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.runspec import Watch

QUIET_S = 10.0  # without progress after a thread's death of a GPU's failure, at least
QUIET_RANK_S = 30.0  # after a rank's exception: it may still write a checkpoint or be caught
QUIET_OTHER_S = 60.0  # after a death of another cause, which the rest may well survive
TELL_S = 60.0  # more, until what stands still but shows signs of life is told of
QUIET_INTERVALS = 3  # of the usual time between two moves
DRAIN = 20  # moves that the rest may still make on what a dead thread left in its queues

_OF_GPUS = ("gpu_oom", "kv_cache_too_small", "cuda_illegal_access", "device_assert", "xid_hw")


class Deaths:
    """Of one attempt. `suspects`: one is being waited for, so it is worth looking at the processes' I/O."""

    def __init__(self, watch: Watch, type: str) -> None:
        self.suspects = False
        self._watch = watch
        self._serves = type == "service"
        self._told: Set[str] = set()
        self._ended: Set[str] = set()

    def know(self, told: Incident) -> None:
        """It was told before."""
        for evidence in told.evidence[:1]:
            self._told.add(_who(evidence))
            if told.fatal:
                self._ended.add(_who(evidence))

    def look(self, at: float, reading: Reading, pace: Pace, vitals: Vitals, *, ready: bool) -> Optional[Incident]:
        """The first one that is plain by now: told once, and once more where the job turns out not to survive it."""
        self.suspects = False
        for clue in reading.clues:
            who = _who(clue.evidence)
            if clue.hint or not _is_death(clue) or who in self._ended:
                continue
            fatal = self._is_end(clue, at, reading, pace, vitals, ready=ready)
            if fatal is None or (not fatal and who in self._told):
                continue
            self._told.add(who)
            if fatal:
                self._ended.add(who)
            return verdict.describe(reading, clue, fatal=fatal)
        return None

    def _is_end(
        self, clue: Clue, at: float, reading: Reading, pace: Pace, vitals: Vitals, *, ready: bool
    ) -> Optional[bool]:
        """None: it is too early to tell."""
        if _goes_on(reading, clue):
            return False
        since = max(clue.at, pace.last or 0.0)
        patience = _patience(clue, reading, pace)
        certain = self._could_be_certain(clue, pace, ready=ready)
        self.suspects = self.suspects or certain
        if at - since < patience:
            return None
        if not certain:
            return False
        if _is_silent(clue, since, patience, vitals, at):
            return True
        return False if at - since >= patience + TELL_S else None

    def _could_be_certain(self, clue: Clue, pace: Pace, *, ready: bool) -> bool:
        """A service that nobody asks anything stands still, too; and who loads makes no progress yet."""
        if self._serves:
            return False
        if ready and pace.known:
            return True
        return self._watch.progress is not None and self._watch.ready is None and _is_of_gpu(clue)


def _who(evidence: Evidence) -> str:
    return str(evidence.thread or evidence.rank)


def _is_death(clue: Clue) -> bool:
    """A thread's end, or a rank's uncaught exception: its own traceback under its own prefix."""
    if clue.weight <= Weight.LAUNCHER:
        return False
    if clue.scope == "thread":
        return True
    return clue.scope == "process" and not clue.alone and not clue.logged and clue.evidence.rank is not None


def _is_of_gpu(clue: Clue) -> bool:
    return verdict.class_of(clue).startswith(_OF_GPUS)


def _goes_on(reading: Reading, clue: Clue) -> bool:
    if reading.answered - clue.answered >= MOVED_ON:
        return True
    return reading.moves - clue.moves > DRAIN if clue.scope == "thread" else verdict.moved_since(reading, clue)


def _patience(clue: Clue, reading: Reading, pace: Pace) -> float:
    """How long without a move is a standstill: longer for work that went on a while, which may only pause."""
    least = QUIET_OTHER_S
    if _is_of_gpu(clue):
        least = QUIET_S if clue.scope == "thread" and reading.moves == clue.moves else QUIET_RANK_S
    return max(least, QUIET_INTERVALS * pace.usual_s)


def _is_silent(clue: Clue, since: float, patience: float, vitals: Vitals, at: float) -> bool:
    """No sign of life. Where a sign can't be read, only a GPU's failure is enough to be sure."""
    of_gpu = _is_of_gpu(clue)
    signs = ("I/O", "computing", "power") if of_gpu else ("I/O", "computing", "power", "output")
    since = max(since, vitals.last_sign(*signs))
    if at - since < patience:
        return False
    if of_gpu:
        return vitals.looked_since(since) or at - since >= patience + LOOK_S
    return vitals.looked_since(since) and vitals.reads_power(at)
