"""What the run's GPUs draw, and the finding `low_power`: a job that progresses on GPUs that mostly wait.

All of it in shares of each card's power limit, averaged. Utilisation is only quoted: copies from the host and a kernel
that spins both show 100 % (measured: 18 % and 17 % of the limit).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Deque, Dict, List, Optional

from gpuctl.watchdog.windows import Window
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.runspec import Finding
from gpuctl.wire.samples import DeviceSample, Sample

OPEN_CONTEXT = 0.2  # of the limit, at most, on a data centre card: a context that is open, or a kernel that spins in it
NEAR = 1.15  # times the least that was seen is still the same state
OF_BASELINE = 0.5  # less than half of what it draws at work is not work as usual
WORKING = 0.3  # of the limit: no loading draws that for long
BACK = 1.1  # times the limit of `low_power`, for it to be over
ROOM = 0.6  # of the memory in use, at most: larger values have room
PAUSE_INTERVALS, PAUSE_PARTS = 3, 5  # more than so many usual intervals, and than this part of `for`, is a pause
LEAST_MOVES = 3
_PACE_S = 10.0
_BASELINES = 64


@dataclass(frozen=True)
class Draw:
    """What one GPU draws on average."""

    index: int
    share: float  # of its power limit
    power_w: float
    limit_w: float
    utilisation: Optional[float]
    memory_share: Optional[float]

    def evidence(self, cls: str) -> Evidence:
        words = f"GPU {self.index}: {self.power_w:.0f} of {self.limit_w:.0f} W ({self.share:.0%}) on average"
        words += f" at {self.utilisation:.0f} % utilisation" if self.utilisation is not None else ""
        words += f", {self.memory_share:.0%} of its memory in use" if self.memory_share is not None else ""
        return Evidence(cls, words, source="telemetry", gpu=self.index)


class _Device:
    """One GPU over the attempt's life."""

    def __init__(self, span_s: float) -> None:
        self.shares = Window(span_s)
        self.utilisation = Window(span_s)
        self.last: Optional[DeviceSample] = None
        self.read_at: Optional[float] = None
        self._lowest: Optional[float] = None
        self._at_work: Deque[float] = deque(maxlen=_BASELINES)

    def add(self, at: float, sample: DeviceSample) -> None:
        self.last = sample
        if sample.utilisation is not None:
            self.utilisation.add(at, sample.utilisation)
        if sample.power_w is None or not sample.power_limit_w:
            return
        self.read_at = at
        self.shares.add(at, sample.power_w / sample.power_limit_w)
        held = sample.memory_used_mib is None or sample.memory_used_mib > 0
        now = self.shares.mean
        if held and now is not None and not self._at_work and self.shares.full(at):
            self._lowest = now if self._lowest is None else min(now, self._lowest)

    def moved(self) -> None:
        """The job has progressed: what it draws around now is what it draws at work."""
        if self.shares.mean is not None:
            self._at_work.append(self.shares.mean)

    @property
    def baseline(self) -> Optional[float]:
        return median(self._at_work) if self._at_work else None

    @property
    def idle_below(self) -> float:
        """Up to here it draws no more than an open context may. Small cards draw more of their little limit for that:
        there the least that this one drew while the job loaded counts, where that is far from what it draws at work."""
        if self.baseline is None or self._lowest is None:
            return OPEN_CONTEXT
        return max(OPEN_CONTEXT, min(self._lowest * NEAR, self.baseline * OF_BASELINE))

    def draw(self) -> Optional[Draw]:
        share, last = self.shares.mean, self.last
        if share is None or last is None or not last.power_limit_w:
            return None
        used, total = last.memory_used_mib, last.memory_total_mib
        return Draw(
            last.index,
            share,
            share * last.power_limit_w,
            last.power_limit_w,
            self.utilisation.mean,
            used / total if used is not None and total else None,
        )


class Power:
    """The run's GPUs, averaged over `span_s`. It answers None where no GPU gives a reading."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.has_worked = False  # it has drawn for a while what nothing but computing draws
        self.sampled = False
        self._devices: Dict[str, _Device] = {}
        self._paced = float("-inf")

    def add(self, sample: Sample) -> None:
        self.sampled = True
        for device in sample.devices:
            self._devices.setdefault(device.uuid, _Device(self.span_s)).add(sample.mono_s, device)
        self.has_worked = self.has_worked or any(
            (one.shares.mean or 0.0) > WORKING and one.shares.full(sample.mono_s) for one in self._devices.values()
        )

    def moved(self, at: float) -> None:
        if at - self._paced >= _PACE_S:
            self._paced = at
            for device in self._devices.values():
                device.moved()

    def idle(self, at: float) -> Optional[bool]:
        """Whether every GPU draws as little as an open context does."""
        read = [one for one in self._devices.values() if one.read_at is not None and at - one.read_at <= self.span_s]
        if not read:
            return None
        return all(one.shares.mean is not None and one.shares.mean <= one.idle_below for one in read)

    def draws(self) -> List[Draw]:
        found = [one.draw() for one in self._devices.values()]
        return sorted((draw for draw in found if draw is not None), key=lambda draw: draw.index)


class LowPower:
    """The detector. Judged at each move of the work, over the time before it: what follows the last move may be a
    stall, which is another finding."""

    def __init__(self, setting: Finding) -> None:
        self.setting = setting
        self._below = setting.below if setting.below is not None else 0.5
        self._power = Power(setting.for_s)
        self._shares = Window(setting.for_s)
        self._last_move: Optional[float] = None
        self._moves = 0  # without a pause between them
        self._found: Optional[Incident] = None
        self._told = False
        self._over: Optional[float] = None

    def add(self, sample: Sample) -> None:
        self._power.add(sample)
        now = [
            device.power_w / device.power_limit_w
            for device in sample.devices
            if device.power_w is not None and device.power_limit_w
        ]
        if now:
            self._shares.add(sample.mono_s, mean(now))

    def moved(self, at: float, usual_s: float) -> None:
        """The work has moved on. `usual_s`: between two moves until then."""
        pause = at - self._last_move if self._last_move is not None else float("inf")
        self._last_move = at
        self._moves += 1
        if pause > max(PAUSE_INTERVALS * usual_s, self.setting.for_s / PAUSE_PARTS):
            self._moves = 1
            self._shares.clear()  # what it drew while it loaded, evaluated or saved is no measure
        share = self._shares.mean
        if share is None or self._moves < LEAST_MOVES or not self._shares.full(at):
            return
        if not self._told and share < self._below:
            self._found = self._incident(share)
        elif self._told and share >= min(1.0, self._below * BACK):
            self._told, self._over = False, share

    def know(self) -> None:
        """It was told before, and has not been over since."""
        self._told = True

    def incident(self) -> Optional[Incident]:
        """The finding, once, until it is over."""
        found, self._found = self._found, None
        self._told = self._told or found is not None
        return found

    def recovered(self) -> Optional[str]:
        """In words, once, when it is over."""
        share, self._over = self._over, None
        return None if share is None else f"its GPUs draw {share:.0%} of their limit again"

    def _incident(self, share: float) -> Incident:
        draws = self._power.draws()
        evidence = [draw.evidence("low_power") for draw in draws]
        said = (
            f"It progresses, but its GPUs drew {share:.0%} of their power limit on average over the last"
            f" {self.setting.for_s:.0f} s, less than {self._below:.0%}."
        )
        found = Incident("low_power", self.setting.action != "alert", "train", evidence)
        return replace(found, gpu=draws[0].index if len(draws) == 1 else None, advice=f"{said} {_cure(share, draws)}")


def _cure(share: float, draws: List[Draw]) -> str:
    used = [draw.utilisation for draw in draws if draw.utilisation is not None]
    memory = [draw.memory_share for draw in draws if draw.memory_share is not None]
    if share <= OPEN_CONTEXT * NEAR:
        cure = (
            "They hardly compute: they wait for input. More data loader workers, prefetching and pinned memory, or data"
            " on a faster disk may help"
        )
        return cure + ("; the utilisation only says that copies were under way." if used and mean(used) > 80 else ".")
    cure = "Small batches or kernels, or waiting for input, are the usual causes."
    if memory and max(memory) < ROOM:
        cure += f" At most {max(memory):.0%} of a GPU's memory is in use: a larger batch or sequence has room."
    return cure
