"""Events, values and times in words for people. Pure: everything comes from what the journal says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gpuctl.wire.replies import RunRow

Event = Mapping[str, Any]

_OWN = ("seq", "time", "mono_s", "type", "attempt")  # told by every event


def clock(time: str | None) -> str:
    """A journal's UTC time as the local time of day."""
    moment = _local(time)
    return f"{moment:%H:%M:%S}" if moment else "–"


def when(time: str | None) -> str | None:
    """A journal's UTC time as a local date and time, without the parts that today makes plain."""
    moment = _local(time)
    if moment is None:
        return None
    return f"{moment:%H:%M:%S}" if moment.date() == datetime.now().date() else f"{moment:%b %d %H:%M}"


def _local(time: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(time).astimezone() if time else None
    except ValueError:
        return None


def params(values: Mapping[str, Any] | None) -> str:
    return " ".join(f"{name}={_scalar(value)}" for name, value in (values or {}).items())


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def gpus(indices: list[int] | None) -> str:
    """`0-3,6` for [0, 1, 2, 3, 6]."""
    spans: list[list[int]] = []
    for index in sorted(indices or []):
        if spans and index == spans[-1][-1] + 1:
            spans[-1].append(index)
        else:
            spans.append([index])
    return ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)


def size(count: int | None) -> str:
    """Bytes, as PyTorch writes them."""
    if count is None:
        return "an unknown amount"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count} bytes"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _count(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def progress(done_total: Mapping[str, Any] | None) -> str | None:
    if not done_total or done_total.get("done") is None:
        return None
    done, total = done_total["done"], done_total.get("total")
    return f"{_count(done)}/{_count(total)}" if total else _count(done)


def last_words(row: RunRow) -> str | None:
    """The end of a run's row: why it is as it is."""
    if row.why:
        return row.why
    if row.incident and row.incident.get("class"):
        return str(row.incident["class"])
    return None


def event_line(event: Event) -> str:
    """One event as one line: time, attempt, type, sentence."""
    attempt = f"#{event['attempt']}" if event.get("attempt") is not None else ""
    return f"{clock(event.get('time'))}  {attempt:<3}  {event['type']:<16}  {sentence(event)}".rstrip()


def sentence(event: Event) -> str:
    """What the event says. One that is not as this version knows it shows its facts as they are."""
    tell = _TELL.get(event["type"], _facts)
    try:
        return tell(event)
    except (TypeError, ValueError, LookupError, AttributeError):  # a node may say anything
        return _facts(event)


def _facts(event: Event) -> str:
    facts = {key: value for key, value in event.items() if key not in _OWN and value not in (None, "", [], {})}
    return "; ".join(f"{key} {value}" for key, value in facts.items())


def _created(event: Event) -> str:
    state = " (queued)" if event.get("state") == "queued" else ""
    return f"by {event.get('by') or 'nobody known'}{state}"


def _started(event: Event) -> str:
    on = gpus(event.get("gpus"))
    code = event.get("code") or {}
    commit = f", code {str(code['commit'])[:10]}{' (dirty)' if code.get('dirty') else ''}" if code.get("commit") else ""
    told = f"pid {event.get('pid')}, " + (f"GPUs {on}" if on else "no GPU") + commit
    if event.get("resumed_from"):
        told += f", from {event['resumed_from']}"
    values = params(event.get("params"))
    return f"{told}: {values}" if values else told


def _progress(event: Event) -> str:
    return progress(event) or ""


def _incident(event: Event) -> str:
    where = f" on GPU {event['gpu']}" if event.get("gpu") is not None else ""
    told = f"{event.get('class')}{where}"
    if event.get("requested_bytes") is not None:
        told += f": asked for {size(event['requested_bytes'])}"
        if event.get("free_bytes") is not None:
            told += f", {size(event['free_bytes'])} was free"
        if event.get("total_bytes") is not None:
            told += f" of {size(event['total_bytes'])}"
    if event.get("advice"):
        told += f". {event['advice']}"
    elif event.get("evidence"):
        told += f". {_evidence(event['evidence'][0])}"
    return told


def _evidence(first: Any) -> str:
    return str(first.get("text", "")) if isinstance(first, Mapping) else str(first)


def _exited(event: Event) -> str:
    if event.get("signal") is not None:
        how = f"by signal {event['signal']}"
    elif event.get("exit_code") is not None:
        how = f"exit code {event['exit_code']}"
    else:
        how = "nobody knows how"
    return f"{how}, after {duration(event.get('duration_s'))}"


def _killed(event: Event) -> str:
    why = f": {event['why']}" if event.get("why") else ""
    return f"{event.get('name')} (pid {event.get('pid')}) got {event.get('signal')}{why}"


def _spared(event: Event) -> str:
    return f"{event.get('name')} (pid {event.get('pid')}): {event.get('why')}"


def _xid(event: Event) -> str:
    return f"GPU {event.get('gpu')}, told by {event.get('source')}: {event.get('text')}"


def _stacks(event: Event) -> str:
    how = [f"{event[key]} by {who}" for key, who in (("dumped", "py-spy"), ("aborted", "SIGABRT")) if event.get(key)]
    told = f" ({', '.join(how)})" if how else ""
    return f"of {event.get('processes')} processes{told}; `gpuctl tail --file {event.get('file')}` shows them"


def _empty(event: Event) -> str:
    ghost = "; utilisation lingers" if event.get("ghost_utilisation") else ""
    return f"verified after {duration(event.get('after_s'))}{ghost}"


def _relaunching(event: Event) -> str:
    values = params(event.get("params"))
    why = event.get("why") or ""
    told = f"with {values}: {why}" if values and why else f"with {values}" if values else why
    aside = ", ".join(event.get("archived") or [])
    return f"{told}; set aside: {aside}" if aside else told


def _finished(event: Event) -> str:
    return f"{event.get('state')}: {event['why']}" if event.get("why") else str(event.get("state"))


def _why(event: Event) -> str:
    return str(event.get("why") or _facts(event))


def _ready(event: Event) -> str:
    return str(event.get("line") or "")


def _cleaning(event: Event) -> str:
    return str(event.get("why") or (f"GPUs {gpus(event['gpus'])}" if event.get("gpus") else ""))


_TELL: Mapping[str, Callable[[Event], str]] = {
    "run_created": _created,
    "attempt_started": _started,
    "ready": _ready,
    "progress": _progress,
    "cleaning": _cleaning,
    "incident": _incident,
    "attempt_exited": _exited,
    "killed": _killed,
    "spared": _spared,
    "gpus_empty": _empty,
    "not_empty": _why,
    "waiting": _why,
    "note": lambda event: str(event.get("text") or _facts(event)),
    "recovered": lambda event: f"{event.get('class')} no more: {event.get('why')}",
    "xid": _xid,
    "stacks": _stacks,
    "relaunching": _relaunching,
    "run_finished": _finished,
}
