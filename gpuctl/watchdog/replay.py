"""A recorded run through today's judge and policy: what would be found and decided now, attempt by attempt.

Pure but for reading the logs that it is handed. The attempts are those that happened: where another decision would have
been taken, what would have followed it nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence

from gpuctl.watchdog.judge import Guard, Judge
from gpuctl.watchdog.moments import Moment
from gpuctl.watchdog.policy import decide, watch_of
from gpuctl.wire.incidents import Action, AttemptRecord, Exit, Incident
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.runspec import RunSpec

PIECE = 1 << 20
UNSEEN = ("disk_full", "driver_hung", "host_oom")
"""What the supervisor may have found where no recorded moment shows it: then its word stands."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """One attempt as it happened. `logs` by name, each at the attempt's first byte."""

    record: AttemptRecord
    started_s: float
    ended_s: Optional[float]  # None: it still runs
    exit: Exit = field(default_factory=Exit)
    ended_by_us: bool = False  # on an incident or a request; then the exit is no verdict
    asked: bool = False  # a person's kill or relaunch came next
    followed: Optional[Event] = None  # its `relaunching` or `run_finished`
    resumes: bool = False  # the next attempt went on from a checkpoint
    moments: Sequence[Moment] = ()
    logs: Mapping[str, BinaryIO] = field(default_factory=dict)
    uuids: Mapping[str, str] = field(default_factory=dict)  # by index
    total_mib: Optional[int] = None
    ledger: Sequence[LedgerEntry] = ()


@dataclass(frozen=True)
class Judged:
    """What today's judge says of an attempt. `at_s` after its start, where it would have been ended while it lived."""

    incident: Optional[Incident] = None
    at_s: Optional[float] = None
    findings: List[Incident] = field(default_factory=list)
    loading_s: Optional[float] = None
    progressed: bool = False


def replay(spec: RunSpec, attempts: Sequence[Recorded], *, guard: Optional[Guard] = None) -> List[Dict[str, Any]]:
    """For each attempt `{"attempt", "params", "was", "now", "differs"}`. `spec` has the policy to try."""
    told: List[Dict[str, Any]] = []
    history: List[AttemptRecord] = []
    for attempt in attempts:
        judged = judge_again(spec, attempt, guard=guard)
        history.append(
            replace(
                attempt.record, incident=judged.incident, loading_s=judged.loading_s, progressed=judged.progressed,
                duration_s=judged.at_s if judged.at_s is not None else attempt.record.duration_s,
            )
        )  # fmt: skip
        was, now = _was(attempt), _now(spec, attempt, judged, history)
        differs = any(was[key] != now[key] for key in ("class", "action", "state", "params"))
        if attempt.asked and judged.at_s is None:
            differs = False  # a person's word came first
        told.append(
            {
                "attempt": attempt.record.attempt, "params": attempt.record.params, "was": was, "now": now,
                "differs": differs,
            }
        )  # fmt: skip
    return told


def judge_again(spec: RunSpec, attempt: Recorded, *, guard: Optional[Guard] = None) -> Judged:
    """The attempt from its first moment to its end, or to where it would be ended now."""
    judge = Judge(watch_of(spec), type=spec.type, started=attempt.started_s, guard=guard)
    findings: List[Incident] = []
    read: Dict[str, int] = {}
    for moment in attempt.moments:
        for incident in [*_hear(judge, attempt, moment, read), *_over_time(spec, attempt, moment.mono_s)]:
            if incident.fatal and spec.policy.get(incident.cls) != "alert":
                after_s = round(moment.mono_s - attempt.started_s, 1)
                return Judged(incident, after_s, findings, judge.loading_s, judge.progressed)
            findings.append(incident)
    ended_s = attempt.ended_s if attempt.ended_s is not None else attempt.started_s
    if attempt.moments:
        ended_s = max(ended_s, attempt.moments[-1].mono_s)
    for source, log in attempt.logs.items():
        _feed(judge, source, log, None, ended_s)
    end = judge.exited(replace(attempt.exit, asked=attempt.ended_by_us), ended_s)
    then = attempt.record.incident
    if end is None and attempt.ended_by_us and then is not None and then.cls in UNSEEN:
        end = then
    return Judged(end, None, findings, judge.loading_s, judge.progressed)


def _hear(judge: Judge, attempt: Recorded, moment: Moment, read: Dict[str, int]) -> List[Incident]:
    """Gives the judge what came in that moment; answers what it finds then."""
    for source in moment.cut:
        judge.truncated(source)
    for source, size in moment.read.items():
        more = size - read.get(source, 0)
        if source in attempt.logs and more > 0:  # a supervisor that came later read it from the start again
            _feed(judge, source, attempt.logs[source], more, moment.mono_s)
            read[source] = size
    if moment.io is not None:
        judge.io(moment.io)
    for fact in moment.facts:
        judge.fact(fact)
    found: List[Incident] = []
    samples = {sample.mono_s: sample for sample in moment.samples(attempt.uuids, attempt.total_mib)}
    for at in moment.times():
        if at in samples:
            judge.sample(samples[at])
        found += judge.tick(at)
    return found


def _feed(judge: Judge, source: str, log: BinaryIO, count: Optional[int], at: float) -> None:
    """So many bytes of a log, or all that is left."""
    while count is None or count > 0:
        data = log.read(PIECE if count is None else min(PIECE, count))
        if not data:
            return
        count = None if count is None else count - len(data)
        judge.feed(source, data, at)


def _over_time(spec: RunSpec, attempt: Recorded, at: float) -> List[Incident]:
    limit = spec.timeout_s
    if limit is None or at - attempt.started_s < limit:
        return []
    return [Incident("timeout", True, advice=f"It ran longer than `timeout` allows, which is {limit:.0f} s.")]


def _was(attempt: Recorded) -> Dict[str, Any]:
    """What was found and done when it happened."""
    incident, followed = attempt.record.incident, attempt.followed or {}
    relaunched = followed.get("type") == "relaunching"
    return {
        "class": incident.cls if incident is not None else None,
        "action": "relaunch" if relaunched else "stop" if followed else None,
        "state": followed.get("state"),
        "params": dict(followed.get("params", {})) if relaunched else None,
        "why": followed.get("why"),
        "asked": attempt.asked,
    }


def _now(spec: RunSpec, attempt: Recorded, judged: Judged, history: Sequence[AttemptRecord]) -> Dict[str, Any]:
    """What would be found and done today."""
    action = _action(spec, attempt, judged, history)
    relaunched = action is not None and action.kind == "relaunch"
    incident = judged.incident
    return {
        "class": incident.cls if incident is not None else None,
        "action": None if action is None else "relaunch" if relaunched else "stop",
        "state": action.state if action is not None and not relaunched else None,
        "params": dict(action.params) if action is not None and relaunched else None,
        "why": action.why if action is not None else None,
        "after_s": judged.at_s,
        "evidence": [{"line": item.line, "text": item.text} for item in incident.evidence] if incident else [],
        "findings": [finding.cls for finding in judged.findings],
    }


def _action(spec: RunSpec, attempt: Recorded, judged: Judged, history: Sequence[AttemptRecord]) -> Optional[Action]:
    """None where it would have gone on, or still does."""
    if judged.incident is not None:
        return decide(
            judged.incident, spec, attempt.record.params, history, resumes=attempt.resumes, ledger=attempt.ledger
        )
    if attempt.ended_s is None or attempt.ended_by_us:
        return None
    if attempt.exit.exit_code == 0:
        return Action("stop", "it exited with code 0", state="succeeded")
    return Action("stop", "its exit status is not known", state="lost")
