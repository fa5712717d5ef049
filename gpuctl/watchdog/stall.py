"""The finding `stalled`: a job that gives no sign of life.

Signs are output, progress, I/O of its processes, and GPUs that draw more than an open context does. One is enough: each
can veto, none can prove. Utilisation is no sign: a kernel that spins in a collective shows 100 %. A sign that can't be
read (no power reading, a closed /proc) leaves the finding, but then nothing may be ended because of it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import Deque, Dict, List, Optional, Tuple

from gpuctl.watchdog.power import Draw, Power
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.runspec import Finding
from gpuctl.wire.samples import TreeIo

# Up to here the tree is quiet: launchers and monitors go on in a hung job. Measured: a torchrun of two ranks reads 500
# bytes a second and writes none; wandb reads 38 KB of /proc every 15 s, all at once, and writes 9 KB.
READ_BYTES_S = 32 * 1024
WRITTEN_BYTES_S = 4 * 1024
LEAST_IO_S = 10.0
LOOK_S = 30.0  # how long a first look at the tree is waited for: it needs two, and a busy machine may be late
BUSY_CORES = 0.1  # of a run without GPUs: who computes does not stall. With GPUs a waiting thread spins
GAP_S = 60.0  # nobody looked for so long (the machine slept, we were stopped): that time proves nothing
INTERVALS = 3  # of the usual time between two moves
SAVING = 3  # times as long: a checkpoint may be written where no counter sees it
_PIECES = 256  # of output, whose sizes are kept: more than come between two looks at the processes' I/O
MEAN_S = 30.0  # power is averaged over this, or a third of `for`

_SAVING = re.compile(
    r"\b(?:saving|writing|dumping|serializing|uploading|flushing)\b.{0,80}"
    r"\b(?:check ?-?points?|ckpt|model|weights?|state|shards?|optimizer|snapshot)"
    r"|\b(?:checkpoint\w*|save_\w+).{0,40}\b(?:starts?|begins?|started|begun)\b|^\s*save checkpoint",
    re.IGNORECASE,
)


class Stall:
    """The detector. `setting.for_s` is the time without a sign of life; it begins when the job is ready."""

    def __init__(self, setting: Finding) -> None:
        self.setting = setting
        self.power = Power(min(MEAN_S, setting.for_s / 3))
        self._last: Dict[str, float] = {}  # sign → when it was last seen
        self._begun: Optional[float] = None  # when it was past loading
        self._line = Evidence("stalled", "")
        self._io: Optional[TreeIo] = None
        self._computed = 0.0  # when its processes last did, of whatever use that was
        self._looked: Optional[float] = None
        self._told: Optional[float] = None  # since when it had been quiet
        self._printed: Deque[Tuple[float, int]] = deque(maxlen=_PIECES)
        self._is_known = False
        self._over: Optional[str] = None

    def alive(self, sign: str, at: float) -> None:
        self._last[sign] = at

    def printed(self, size: int, at: float) -> None:
        """So many bytes of output: a sign of their own, and not of I/O beside it."""
        self._printed.append((at, size))
        self.alive("output", at)

    def said(self, text: str, number: int, source: str) -> None:
        """The last line that was read."""
        self._line = Evidence("stalled", text[:1024], number, source)

    def io(self, io: TreeIo) -> None:
        """What its processes have read, written and computed since the last look."""
        self._io = io
        over = max(io.over_s, LEAST_IO_S)
        printed = sum(size for at, size in self._printed if at > io.mono_s - io.over_s)
        if io.read_bytes > READ_BYTES_S * over or io.written_bytes - printed > WRITTEN_BYTES_S * over:
            self.alive("I/O", io.mono_s)
        if io.cpu_s is not None and io.cpu_s > BUSY_CORES * io.over_s:
            self._computed = io.mono_s
            if not self.power.sampled:
                self.alive("computing", io.mono_s)

    def look(self, at: float, *, begun: bool, usual_s: float) -> Optional[Incident]:
        """The finding, once, until it is over. `begun`: the job is past loading. `usual_s`: between two moves of it."""
        self._mind_gap(at)
        if not begun or self._begun is None:
            self._begun = at
        idle = self.power.idle(at)
        if idle is False:
            self.alive("power", at)
        since = max(self._begun, *self._last.values()) if self._last else self._begun
        if self._is_known and begun:
            self._told, self._is_known = since, False
        if self._told is not None:
            if since > self._told:
                sign = max(self._last, key=lambda name: self._last[name], default="loading")
                self._over, self._told = f"a sign of life again: {sign}", None
            return None
        patience = max(self.setting.for_s, INTERVALS * usual_s) * (SAVING if self._is_saving else 1)
        looked = self.looked_since(since)
        if at - since < patience + (0.0 if looked else LOOK_S):
            return None
        self._told = since
        known = looked and (idle is not None or not self.power.sampled)
        return self._incident(at, at - since, known=known)

    def know(self) -> None:
        """It was told before, and has not been over since."""
        self._is_known = True

    def last_sign(self, *signs: str) -> float:
        """When one of these was last seen; 0 where none ever was."""
        return max((self._last.get(sign, 0.0) for sign in signs), default=0.0)

    def looked_since(self, at: float) -> bool:
        """Has anybody looked at the processes' I/O since?"""
        return self._io is not None and self._io.mono_s > at

    @property
    def active_at(self) -> float:
        """When its processes last moved on, read, wrote or computed."""
        return max(self._computed, self.last_sign("progress", "I/O"))

    def recovered(self) -> Optional[str]:
        """In words, once, when it is over."""
        over, self._over = self._over, None
        return over

    def quiet_s(self, at: float) -> float:
        """How long there was neither output nor progress: only then is it worth looking at the rest."""
        if self._begun is None:
            return 0.0
        return at - max(self._begun, *(self._last.get(sign, self._begun) for sign in ("output", "progress")))

    @property
    def _is_saving(self) -> bool:
        return bool(_SAVING.search(self._line.text))

    def _mind_gap(self, at: float) -> None:
        gap = at - self._looked if self._looked is not None else 0.0
        if gap > GAP_S:
            self._last = {sign: min(last + gap, at) for sign, last in self._last.items()}
            self._begun = min(self._begun + gap, at) if self._begun is not None else None
            self._told = min(self._told + gap, at) if self._told is not None else None
        self._looked = at

    def _incident(self, at: float, quiet_s: float, *, known: bool) -> Incident:
        ages = ", ".join(f"{sign} {at - last:.0f} s ago" for sign, last in sorted(self._last.items()))
        draws = self.power.draws()
        evidence = [Evidence("stalled", f"last signs of life: {ages or 'none'}", source="watch")]
        evidence += [self._line] if self._line.text else []
        evidence += [draw.evidence("stalled") for draw in draws]
        said = f"For {quiet_s:.0f} s it gave no sign of life: no output, no progress, no I/O of its processes"
        said += ", and its GPUs draw no more than an open context does." if draws else "."
        unknown = "" if known else " Its power or I/O can't be read, so it is only told: nothing is ended for it."
        found = Incident("stalled", known and self.setting.action != "alert", "train", evidence)
        suspect = _absent(draws)
        return replace(found, gpu=suspect, advice=f"{said}{unknown} {_where_to_look(draws, suspect)}")


def _absent(draws: List[Draw]) -> Optional[int]:
    """The one GPU that runs nothing while all others spin: its rank is the one that the others wait for."""
    asleep = [draw.index for draw in draws if draw.utilisation is not None and draw.utilisation < 10]
    spinning = [draw.index for draw in draws if draw.utilisation is not None and draw.utilisation > 90]
    return asleep[0] if len(asleep) == 1 and len(spinning) == len(draws) - 1 > 0 else None


def _where_to_look(draws: List[Draw], suspect: Optional[int]) -> str:
    if suspect is not None:
        return (
            f"The others spin in a collective and wait for the rank on GPU {suspect}, which runs nothing: look at what"
            " that one does (`py-spy dump --pid PID`)."
        )
    if any(draw.utilisation is not None and draw.utilisation > 90 for draw in draws):
        return (
            "A kernel spins at full utilisation and idle power, as in a collective that waits for a rank: look at what"
            " each rank does (`py-spy dump --pid PID`)."
        )
    return (
        "Its processes wait for something: a lock, a queue, a data loader, a file system or network. `py-spy dump --pid"
        " PID` shows where."
    )
