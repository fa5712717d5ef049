"""What the machine says beside the log: kernel, driver, disks. Like a line, a fact is evidence and no verdict; what it
explains is decided here once the attempt has failed.

The classes of facts: `host_oom` (the kernel counted or logged an OOM kill), `xid_hw`, `cuda_illegal_access` (an Xid),
`driver_hung`, `disk_full`; and `unknown`, which says that OOM kills were looked for and there was none.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from gpuctl.watchdog import xids
from gpuctl.watchdog.advice import advise
from gpuctl.watchdog.reading import MOVED_ON, Reading
from gpuctl.wire.incidents import Evidence, Exit, Incident
from gpuctl.wire.samples import Sample

NO_OOM = "unknown"
HUNG = "driver_hung"
HUNG_S = 180.0  # of silence, the driver's and the job's, after which an attempt can't go on

_NEWS = ("xid_hw", "disk_full", "host_oom")
"""Facts that are worth telling though the job goes on."""
_LOST = re.compile(r"\blost\b|\breset\b", re.IGNORECASE)  # NVML's words for a GPU that needs more than a try

_VAGUE = frozenset({"unknown", "code_error", "rank_failed_secondary"})
_LOST_PEER = frozenset({"nccl_timeout", "nccl_error", "thread_died"})
_RANKING: Tuple[Tuple[str, FrozenSet[str]], ...] = (
    ("xid_hw", _VAGUE | _LOST_PEER | {"cuda_illegal_access", "driver_mismatch", "driver_hung"}),
    ("host_oom", _VAGUE | _LOST_PEER),
    ("driver_hung", _VAGUE | _LOST_PEER | {"driver_mismatch", "timeout"}),
    ("disk_full", _VAGUE | {"checkpoint_corrupt"}),
    ("cuda_illegal_access", _VAGUE | _LOST_PEER),
)
"""The facts that may explain a failure, the deepest first, and what each looks like in a log that does not know of it.
A log that names another cause is believed."""

_PLAIN = re.compile(
    r"^(?:Key|Value|Type|Attribute|Import|ModuleNotFound|Name|UnboundLocal|Index|Syntax|Indentation|ZeroDivision"
    r"|NotImplemented|Recursion|FileNotFound|FileExists|IsADirectory|NotADirectory|Permission)Error\b"
)
"""A program's own mistake, whatever the machine did at that time."""
_SIGKILL = re.compile(
    r"\bSIGKILL\b|\bkilled by signal:? (?:killed|9)\b|\bsignal:? \(?9\b|^(?:\S+: )?(?:line )?[\d: ]*Killed\b"
    r"|\b(?:exit ?code|exit status|returncode)\W{1,4}(?:-9|137)\b"
    r"|\bterminated abruptly\b|\b(?:died|exited) unexpectedly\b",
    re.IGNORECASE,
)
"""What somebody prints whose child was ended by a SIGKILL, or vanished without a word as one that was."""
_SAYS_OOM = re.compile(r"\boom|out of memory|memory ?error|bad_alloc|allocate", re.IGNORECASE)

_NO_OOM_ADVICE = (
    "{who} was ended by SIGKILL. gpuctl did not send it, and the kernel's out-of-memory killer did not either: it was "
    "somebody or something else, such as a person, a scheduler, earlyoom or systemd-oomd."
)
_KEPT = 8  # lines of evidence in an incident


XID_S = 120.0  # an Xid that came longer before the end is not its cause
XID_PEER_S = 3600.0  # but who waits for a lost peer waits for a collective's timeout, which is up to so long


class Fact(NamedTuple):
    evidence: Evidence
    moves: int  # of the job's counters until then
    at: float


class Facts:
    """Of one attempt, as far as they have become known."""

    def __init__(self) -> None:
        self.known: List[Fact] = []
        self._untold: List[Incident] = []
        self._told: Set[str] = set()
        self._hung_since: Optional[float] = None
        self._hang_is_known = False

    def add(self, evidence: Evidence, moves: int, at: float) -> None:
        self.known.append(Fact(evidence, moves, at))
        if evidence.cls in _NEWS and _topic(evidence) not in self._told:
            self._tell(evidence)

    def hear(self, sample: Sample, moves: int) -> None:
        """Whether the driver answers, and each GPU of the run. One that does again has not hung for good."""
        for device in sample.devices:
            if device.error is not None and _LOST.search(device.error) and device.uuid not in self._told:
                self._told.add(device.uuid)
                text = f"GPU {device.index} answers nothing but: {device.error}"
                self.add(Evidence("xid_hw", text, source="telemetry", gpu=device.index), moves, sample.mono_s)
        hangs = sample.error is not None and sample.error.startswith(HUNG)
        if hangs and self._hung_since is None:
            self._hung_since = sample.mono_s
            evidence = Evidence(HUNG, sample.error or HUNG, source="telemetry")
            self.add(evidence, moves, sample.mono_s)
            if not self._hang_is_known:
                self._tell(evidence)
        elif not hangs:
            self._hung_since, self._hang_is_known = None, False
            self.known = [fact for fact in self.known if fact.evidence.cls != HUNG]

    @property
    def hangs(self) -> bool:
        """Is the driver silent?"""
        return self._hung_since is not None

    def know(self, told: Incident) -> None:
        """It was told before."""
        self._told.add(_topic(told.evidence[0]) if told.evidence else told.cls)
        self._hang_is_known = self._hang_is_known or told.cls == HUNG

    def skip(self, gap_s: float, at: float) -> None:
        """Nobody looked for so long: that is no silence."""
        if self._hung_since is not None:
            self._hung_since = min(self._hung_since + gap_s, at)

    def news(self, at: float, active: float) -> List[Incident]:
        """What has become certain. `active`: when the job last gave a sign of life: output, a move, I/O, computing. A
        driver that is silent while the job goes on is no reason to end it."""
        news, self._untold = self._untold, []
        if self._hung_since is not None and at - max(self._hung_since, active) >= HUNG_S:
            self._hung_since = at  # told; and again only if it is not acted on
            hung = [fact.evidence for fact in self.known if fact.evidence.cls == HUNG]
            news.append(_incident(HUNG, hung, None))
        return news

    def _tell(self, evidence: Evidence) -> None:
        self._told.add(_topic(evidence))
        found = replace(_incident(evidence.cls, [evidence], None), fatal=False)
        if evidence.xid is not None and not xids.explains(evidence.xid):
            advice = f"Xid {evidence.xid} tells of {xids.meaning(evidence.xid)}; alone it is no reason to end a job."
            found = replace(found, advice=advice)
        self._untold.append(found)


def _topic(evidence: Evidence) -> str:
    """What is told once: a class, or an Xid that is only told."""
    only_told = evidence.xid is not None and not xids.explains(evidence.xid)
    return f"Xid {evidence.xid}" if only_told else evidence.cls


def explain(
    found: Optional[Incident], exit: Exit, reading: Reading, facts: Sequence[Fact], at: float
) -> Optional[Incident]:
    """The incident that the facts make of a failed attempt; `found` is what its log shows. None: they add nothing.

    A fact that the job has moved on from explains nothing, as a line does.
    """
    if found is not None and _PLAIN.match(found.evidence[0].text if found.evidence else "") and not _by_sigkill(exit):
        return None
    lost = found is not None and found.cls in _LOST_PEER
    by_class = _by_class(reading, [fact for fact in facts if _is_in_time(fact, at, XID_PEER_S if lost else XID_S)])
    killed = _killed(found, exit, reading)
    for cls, looks_like in _RANKING:
        evidence = by_class.get(cls, [])
        if (
            evidence
            and (found is None or found.cls in looks_like or found.cls == cls)
            and (killed or cls != "host_oom")
        ):
            return _incident(cls, _ours_first(evidence, reading) if cls == "host_oom" else evidence, found)
    if killed and by_class.get(NO_OOM) and _is_guess(found):
        return _not_the_kernel(killed, by_class[NO_OOM], found)
    return None


def _is_in_time(fact: Fact, at: float, within_s: float) -> bool:
    number = fact.evidence.xid
    return number is None or (xids.explains(number) and at - fact.at <= within_s)


def _by_class(reading: Reading, facts: Sequence[Fact]) -> Mapping[str, List[Evidence]]:
    found: Dict[str, List[Evidence]] = {}
    for fact in facts:
        if reading.moves - fact.moves < MOVED_ON:
            found.setdefault(fact.evidence.cls, []).append(fact.evidence)
    return found


def _killed(found: Optional[Incident], exit: Exit, reading: Reading) -> Optional[str]:
    """Who was ended by a SIGKILL: the attempt's own process, or one whose end its log tells of. None: nobody.

    A launcher kills the ranks that are left when one has failed; so where the log shows a fault of the program, only
    that very line counts.
    """
    if _by_sigkill(exit):
        return "It"
    lines = [evidence.text for evidence in found.evidence[:1]] if found is not None else []
    if found is None or found.cls != "code_error":
        lines += [clue.text for clue in reading.clues if reading.moves - clue.moves < MOVED_ON]
    return "One of its processes" if any(_SIGKILL.search(line) for line in lines) else None


def _by_sigkill(exit: Exit) -> bool:
    return exit.signal == signal.SIGKILL or exit.exit_code == 128 + signal.SIGKILL


def _ours_first(evidence: List[Evidence], reading: Reading) -> List[Evidence]:
    """An OOM kill of a process that the job's own log names stands before one of whom nobody knows."""
    text = "\n".join(clue.text for clue in reading.clues)
    return sorted(evidence, key=lambda item: not (item.pid and re.search(rf"\b{item.pid}\b", text)))


def _is_guess(found: Optional[Incident]) -> bool:
    """Does the log know no more of a cause than that somebody was killed?"""
    if found is None or found.cls in ("unknown", "rank_failed_secondary"):
        return True
    own = [evidence for evidence in found.evidence if evidence.cls == "host_oom"]
    return found.cls == "host_oom" and not any(_SAYS_OOM.search(evidence.text) for evidence in own)


def _incident(cls: str, evidence: List[Evidence], found: Optional[Incident]) -> Incident:
    first = evidence[0]
    rest = [item for item in found.evidence if item not in evidence] if found is not None else []
    gpu = first.gpu if first.gpu is not None or found is None else found.gpu
    made = Incident(cls, True, found.phase if found else "unknown", [*evidence, *rest][:_KEPT], gpu)
    return replace(made, advice=advise(made))


def _not_the_kernel(who: str, looked: List[Evidence], found: Optional[Incident]) -> Incident:
    lines = [*(found.evidence if found is not None else []), *looked][:_KEPT]
    phase = found.phase if found is not None else "unknown"
    return Incident("unknown", True, phase, lines, advice=_NO_OOM_ADVICE.format(who=who))
