"""A run's life, as its journal tells it: events are folded into one `Life`, by the same function on both sides.

Nothing else may work out a run's state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple

from gpuctl.wire.names import ENDED
from gpuctl.wire.replies import RunRow
from gpuctl.wire.runspec import RunSpec, Scalar

Event = Mapping[str, Any]

_LIVE = frozenset({"queued", "starting", "loading", "running", "cleaning", "relaunching"})

MOVES: Mapping[str, Tuple[FrozenSet[str], str]] = {
    "attempt_started": (_LIVE, "loading"),
    "loading": (frozenset({"starting"}), "loading"),
    "ready": (frozenset({"loading"}), "running"),
    "progress": (frozenset({"loading"}), "running"),
    "cleaning": (_LIVE, "cleaning"),
    "relaunching": (_LIVE | frozenset(ENDED), "relaunching"),  # a person's relaunch revives a run that has ended
}
"""Event type → (the states that it moves, the state that it moves them to). Elsewhere it moves nothing: a line of
progress that is read while the run is being cleaned up does not make it run again."""


@dataclass(frozen=True)
class Life:
    state: str = "starting"
    attempt: Optional[int] = None
    params: Dict[str, Scalar] = field(default_factory=dict)
    gpus: List[int] = field(default_factory=list)
    progress: Optional[Dict[str, Any]] = None  # {"done", "total"}, of the current attempt
    incident: Optional[Dict[str, Any]] = None  # the last one
    created: Optional[str] = None
    ended: Optional[str] = None
    why: Optional[str] = None  # of its ending or waiting
    by: Optional[str] = None
    machine: Optional[Dict[str, Any]] = None  # that its last attempt started on: host, boot_id, init_start
    seq: int = 0  # of the last event

    @property
    def over(self) -> bool:
        return self.state in ENDED


def fold(events: Iterable[Event], life: Optional[Life] = None) -> Life:
    """The life that these events tell, going on from `life`."""
    if life is None:
        life = Life()
    for event in events:
        life = advance(life, event)
    return life


def advance(life: Life, event: Event) -> Life:
    """One event further."""
    known = replace(life, seq=event["seq"])
    learn = _LEARN.get(event["type"])
    if learn is not None:
        known = learn(known, event)
    sources, state = MOVES.get(event["type"], (frozenset(), ""))
    return replace(known, state=state) if known.state in sources else known


def row(spec: RunSpec, events: Iterable[Event], *, here: Optional[str] = None) -> RunRow:
    """The run as `ps` shows it. `here`: the host name of who asks; a run of another host is shown as that one's."""
    return row_of(spec, fold(events), here=here)


def row_of(spec: RunSpec, life: Life, *, here: Optional[str] = None) -> RunRow:
    host = (life.machine or {}).get("host")
    return RunRow(
        run=spec.run,
        job=spec.job,
        node=spec.node,
        state=life.state,
        attempt=life.attempt,
        params=life.params or spec.params,
        gpus=life.gpus,
        created=life.created,
        ended=life.ended,
        progress=life.progress,
        incident=life.incident,
        why=life.why,
        by=life.by or spec.by or None,
        launcher=spec.launcher,
        secrets=spec.secrets,
        machine=host if here is not None and host != here else None,
    )


def _created(life: Life, event: Event) -> Life:
    return replace(
        life,
        state=event.get("state", "starting"),  # "queued" where its GPUs were taken
        created=event["time"],
        by=event.get("by"),
        machine=event.get("machine"),
        params=event.get("params", life.params),
        gpus=event.get("gpus", life.gpus),
        why=event.get("why"),
    )


def _attempt_started(life: Life, event: Event) -> Life:
    return replace(
        life,
        attempt=event.get("attempt", life.attempt),
        params=event.get("params", life.params),
        gpus=event.get("gpus", life.gpus),
        machine=event.get("machine", life.machine),
        progress=None,
        why=None,
    )


def _progress(life: Life, event: Event) -> Life:
    return replace(life, progress={"done": event.get("done"), "total": event.get("total")})


def _incident(life: Life, event: Event) -> Life:
    facts = {key: value for key, value in event.items() if key not in ("seq", "time", "mono_s", "type")}
    return replace(life, incident=facts)


def _recovered(life: Life, event: Event) -> Life:
    """What was told of a living attempt and holds no more is no incident of it."""
    over = life.incident is not None and life.incident.get("class") == event.get("class")
    return replace(life, incident=None) if over else life


def _waiting(life: Life, event: Event) -> Life:
    return replace(life, why=event.get("why"))


def _relaunching(life: Life, event: Event) -> Life:
    return replace(life, params=event.get("params", life.params), why=event.get("why"), ended=None)


def _finished(life: Life, event: Event) -> Life:
    if life.over:
        return life
    return replace(life, state=event["state"], why=event.get("why"), ended=event["time"])


_LEARN = {
    "run_created": _created,
    "attempt_started": _attempt_started,
    "progress": _progress,
    "incident": _incident,
    "recovered": _recovered,
    "waiting": _waiting,
    "relaunching": _relaunching,
    "run_finished": _finished,
}
"""Event type → what a life learns from it."""
