"""Evidence, incident, action: the three words of judging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Type

from gpuctl.wire.runspec import Scalar
from gpuctl.wire.word import Word


@dataclass(frozen=True)
class Evidence(Word):
    """A line that looks like trouble, and what it states. Sizes in bytes as printed (rounded by who printed them)."""

    cls: str
    text: str  # the line, without colours and prefixes, at most 1 KiB
    line: int = 0  # in its file, from 1
    source: str = "log"  # the file's name, relative
    rank: Optional[int] = None
    gpu: Optional[int] = None
    requested_bytes: Optional[int] = None
    total_bytes: Optional[int] = None
    free_bytes: Optional[int] = None
    in_use_bytes: Optional[int] = None  # by this process
    allocated_bytes: Optional[int] = None
    reserved_bytes: Optional[int] = None  # reserved but unallocated
    others: List[Dict[str, int]] = field(default_factory=list)
    """{"pid", "bytes"}: other processes, as stated; "ours": 1 for one that gpuctl knows to be of the same attempt."""
    thread: Optional[str] = None  # the thread that died of it
    frame: Optional[str] = None  # the innermost frame of the job's own code, "file:line"
    pid: Optional[int] = None  # of the process that it tells of, where who says it knows
    xid: Optional[int] = None  # the driver's number for an error of the GPU


@dataclass(frozen=True)
class Incident(Word):
    """A detector's finding. `fatal`: the attempt ended, or can't go on, because of it."""

    cls: str
    fatal: bool
    phase: str = "unknown"
    evidence: List[Evidence] = field(default_factory=list)  # the deciding one first
    gpu: Optional[int] = None
    requested_bytes: Optional[int] = None
    total_bytes: Optional[int] = None
    free_bytes: Optional[int] = None
    advice: str = ""  # in full sentences, for people
    strangers: List[int] = field(default_factory=list)  # where memory ran out: pids on its GPUs that were not the run's

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"evidence": Evidence}

    def to_event(self) -> Dict[str, Any]:
        """The fields of its `incident` event: `cls` is `class` there."""
        fields = self.to_json()
        evidence = [{"class": item.pop("cls"), **item} for item in fields.pop("evidence")]
        return {"class": fields.pop("cls"), **fields, "evidence": evidence}

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Incident:
        """The incident that an `incident` event tells of."""
        evidence = [{**item, "cls": item.get("class", "unknown")} for item in event.get("evidence", [])]
        return cls.from_json({**event, "cls": event["class"], "evidence": evidence})


@dataclass(frozen=True)
class Action(Word):
    """The policy's answer. `kind`: relaunch | stop | alert. `why` is a sentence for people.

    relaunch: with `params` (all of them) and `env` added, after `delay_s`; stop: the run ends in `state`.
    """

    kind: str
    why: str
    state: Optional[str] = None
    params: Dict[str, Scalar] = field(default_factory=dict)
    env: Dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass(frozen=True)
class AttemptRecord(Word):
    """One past attempt, as the policy sees it."""

    attempt: int
    params: Dict[str, Scalar]
    incident: Optional[Incident] = None
    duration_s: Optional[float] = None
    loading_s: Optional[float] = None  # until ready, None if it was never reached
    progressed: bool = False
    gpus_were_empty: bool = True  # when it began, and nobody else was on them when its memory ran out
    requested: bool = False  # started by a person's relaunch: budgets begin anew here
    resumed_from: Optional[str] = None  # the checkpoint that it went on from
    resumed_written: Optional[float] = None  # when that was written: another one of the same name is another one
    extra: Dict[str, Any] = field(default_factory=dict)

    NESTED: ClassVar[Mapping[str, Type[Word]]] = {"incident": Incident}


@dataclass(frozen=True)
class Exit(Word):
    """How an attempt ended. Both None where it could not be known."""

    exit_code: Optional[int] = None
    signal: Optional[int] = None  # a number
    duration_s: Optional[float] = None
    left_behind: bool = False  # its first process ended, but descendants live and hold GPU memory
    asked: bool = False  # ended by us on a request, or after an incident
    setup_failed: bool = False  # it ended before its `setup` was through
    never_begun: bool = False  # its process was ended before it became the job: nothing of it has run
