"""A living attempt's signs of life together: what output, progress, I/O and power say of whether it goes on, and well.

The detectors are `stall` and `power`. Where the job file says nothing, both still tell, after long enough to be sure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List

from gpuctl.watchdog.lines import Line
from gpuctl.watchdog.power import LowPower
from gpuctl.watchdog.stall import Stall
from gpuctl.wire.incidents import Incident
from gpuctl.wire.runspec import Finding, Watch
from gpuctl.wire.samples import Sample, TreeIo

STALL = Finding(1800.0)
LOW_POWER = Finding(900.0, below=0.25)  # hardly more than an open context draws
NEVER = Finding(900.0, below=0.0)


@dataclass(frozen=True)
class Recovered:
    """A finding that holds no more."""

    cls: str
    why: str

    def to_event(self) -> Dict[str, Any]:
        """The fields of its `recovered` event."""
        return {"class": self.cls, "why": self.why}


class Vitals:
    """`type` is the job's: a `service` that nobody asks anything is quiet and draws little, and is well."""

    def __init__(self, watch: Watch, type: str) -> None:
        self.stall = Stall(watch.stall or STALL)
        self._watch = watch
        self._serves = type == "service"
        self.low_power = LowPower(watch.low_power or (NEVER if self._serves else LOW_POWER))
        self._progressed = False

    def heard(self, lines: List[Line], source: str, at: float, size: int) -> None:
        """So many bytes have come, with these lines among them."""
        self.stall.printed(size, at)
        if lines:
            self.stall.said(lines[-1].text, lines[-1].number, source)

    def moved(self, at: float, usual_s: float) -> None:
        """The work itself (not its loading) has moved on. `usual_s`: between two moves until then."""
        self._progressed = True
        self.stall.alive("progress", at)
        self.stall.power.moved(at)
        self.low_power.moved(at, usual_s)

    def sample(self, sample: Sample) -> None:
        self.stall.power.add(sample)
        self.low_power.add(sample)

    def io(self, io: TreeIo) -> None:
        self.stall.io(io)

    def quiet_s(self, at: float) -> float:
        return self.stall.quiet_s(at)

    def know(self, cls: str) -> None:
        """It was told before."""
        if cls == "stalled":
            self.stall.know()
        elif cls == "low_power":
            self.low_power.know()

    def last_sign(self, *signs: str) -> float:
        return self.stall.last_sign(*signs)

    def looked_since(self, at: float) -> bool:
        return self.stall.looked_since(at)

    def reads_power(self, at: float) -> bool:
        """Can what its GPUs draw be read? It can for a run without GPUs, which draws nothing."""
        return not self.stall.power.sampled or self.stall.power.idle(at) is not None

    @property
    def active_at(self) -> float:
        return self.stall.active_at

    def look(self, at: float, *, phase: str, usual_s: float) -> List[Incident]:
        """What has become certain by now, each once; fatal only where the job's progress is known for sure.

        `usual_s`: between two moves of the work, 0 where not known.
        """
        certain = self._progressed and self._watch.progress is not None
        low, quiet = self.low_power.incident(), None
        if not self._serves:
            quiet = self.stall.look(at, begun=self._begun(phase), usual_s=usual_s)
        found = [incident for incident in (quiet, low) if incident is not None]
        return [replace(incident, phase=phase, fatal=incident.fatal and certain) for incident in found]

    def recovered(self) -> List[Recovered]:
        found = (("stalled", self.stall.recovered()), ("low_power", self.low_power.recovered()))
        return [Recovered(cls, why) for cls, why in found if why is not None]

    def _begun(self, phase: str) -> bool:
        """Is it past loading? Where no line says so: without GPUs at once, else once they have computed."""
        if phase not in ("load", "unknown"):
            return True
        if self._watch.ready is not None:
            return False
        return self.stall.power.has_worked if self.stall.power.sampled else phase == "unknown"
