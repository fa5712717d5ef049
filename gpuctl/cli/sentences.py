"""Events, values and times in words for people. Pure: everything comes from what the journal says."""

from __future__ import annotations

import signal
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
    state = "; it waits for its turn" if event.get("state") == "queued" else ""
    return f"launched by {event.get('by') or 'nobody known'}{state}"


def _started(event: Event) -> str:
    on = gpus(event.get("gpus"))
    code = event.get("code") or {}
    told = f"pid {event.get('pid')} on " + (f"GPUs {on}" if on else "no GPU")
    if code.get("commit"):
        told += f", code {str(code['commit'])[:10]}{' (dirty)' if code.get('dirty') else ''}"
    if event.get("resumed_from"):
        told += f", from {event['resumed_from']}"
    values = params(event.get("params"))
    return f"{told}, with {values}" if values else told


def _taken_over(event: Event) -> str:
    return f"pid {event.get('pid')} goes on where the supervisor before it was lost"


def _requested(event: Event) -> str:
    who, values = event.get("by") or "somebody", params(event.get("params"))
    if event.get("kind") == "kill":
        grace = event.get("grace_s")
        told = f"{who} asks to end it" + (f", with a grace of {duration(grace)}" if grace is not None else "")
    else:
        told = f"{who} asks for the next attempt" + (f" with {values}" if values else "")
        told += " by another job file" if event.get("spec") else ""
    return told if event.get("accepted") else f"{told}; refused: {event.get('why')}"


def _ready(event: Event) -> str:
    return str(event.get("line") or "loading is over")


def _progress(event: Event) -> str:
    return progress(event) or "it moves"


def _incident(event: Event) -> str:
    where = f" on GPU {event['gpu']}" if event.get("gpu") is not None else ""
    asked, advice = memory_numbers(event)
    if not advice and event.get("evidence"):
        first = event["evidence"][0]
        advice = str(first.get("text", "")) if isinstance(first, Mapping) else str(first)
    told = ". ".join(part for part in (asked, advice) if part)
    cls = f"{event.get('class')}{where}" + (", but it goes on" if event.get("fatal") is False else "")
    return f"{cls}: {told}" if told else cls


def memory_numbers(incident: Event) -> tuple[str, str]:
    """What was asked for, was free and held the rest, in words; and the advice without what that says already."""
    advice = str(incident.get("advice") or "")
    if incident.get("requested_bytes") is None:
        return "", advice
    told = f"asked for {size(incident['requested_bytes'])}"
    if incident.get("free_bytes") is not None:
        told += f", {size(incident['free_bytes'])} was free"
    if incident.get("total_bytes") is not None:
        told += f" of {size(incident['total_bytes'])}"
    first, _dot, rest = advice.partition(". ")
    if " was asked for " not in first:
        return told, advice
    held = first.rstrip(".").partition(" (")[2]
    return (f"{told} ({held}" if held else told), rest


def _exited(event: Event) -> str:
    number = event.get("signal")
    if number is not None:
        how = f"ended by {signal_name(number)}"
    elif event.get("exit_code") is not None:
        how = f"exited with code {event['exit_code']}"
    else:
        how = "ended, nobody knows how,"
    return f"{how} after {duration(event.get('duration_s'))}"


def signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def _cleaning(event: Event) -> str:
    told = "ends what is left of it" + (f" on GPUs {gpus(event['gpus'])}" if event.get("gpus") else "")
    return f"{told}: {event['why']}" if event.get("why") else told


def _killed(event: Event) -> str:
    why = f": {event['why']}" if event.get("why") else ""
    return f"{event.get('name')} (pid {event.get('pid')}) got {event.get('signal')}{why}"


def _spared(event: Event) -> str:
    return f"{event.get('name')} (pid {event.get('pid')}) is left alone: {event.get('why')}"


def _xid(event: Event) -> str:
    gpu = event.get("gpu")
    where = f" on GPU {gpu}" if gpu is not None else ""
    return f"Xid {event.get('xid')}{where}, told by {event.get('source')}: {event.get('text')}"


def _stacks(event: Event) -> str:
    how = [f"{event[key]} by {who}" for key, who in (("dumped", "py-spy"), ("aborted", "SIGABRT")) if event.get(key)]
    told = f" ({', '.join(how)})" if how else ""
    return f"of {event.get('processes')} processes{told}; `gpuctl tail --file {event.get('file')}` shows them"


def _empty(event: Event) -> str:
    ghost = "; utilisation lingers" if event.get("ghost_utilisation") else ""
    on = gpus(event.get("gpus"))
    return f"verified after {duration(event.get('after_s'))}{f', on GPUs {on}' if on else ''}{ghost}"


def _not_empty(event: Event) -> str:
    failure = str(event.get("failure") or "").replace("_", " ")
    return ": ".join(part for part in (failure, str(event.get("why") or "")) if part)


def _waiting(event: Event) -> str:
    told = str(event.get("why"))
    if event.get("seconds") is not None:
        told += f"; for at most {duration(event['seconds'])}"
    return f"{told}; number {event['queue']} in the queue" if event.get("queue") else told


def _truncated(event: Event) -> str:
    return f"{event.get('file')} was cut or replaced; {event.get('lost_bytes')} bytes of it were never read"


def _called_back(event: Event) -> str:
    code, state = event.get("exit_code"), event.get("state")
    if code is None:
        return f"the callback for {state} did not end well: {event.get('why')}"
    return f"the callback for {state} ended with exit code {code}"


def _relaunching(event: Event) -> str:
    values = params(event.get("params"))
    why = event.get("why") or ""
    told = f"with {values}: {why}" if values and why else f"with {values}" if values else why
    aside = ", ".join(event.get("archived") or [])
    return f"{told}; set aside: {aside}" if aside else told


def _finished(event: Event) -> str:
    return f"{event.get('state')}: {event['why']}" if event.get("why") else str(event.get("state"))


_TELL: Mapping[str, Callable[[Event], str]] = {
    "run_created": _created,
    "supervisor_started": _taken_over,
    "request": _requested,
    "attempt_started": _started,
    "loading": lambda _event: "it loads",
    "ready": _ready,
    "progress": _progress,
    "cleaning": _cleaning,
    "incident": _incident,
    "recovered": lambda event: f"{event.get('class')} no more: {event.get('why')}",
    "attempt_exited": _exited,
    "killed": _killed,
    "spared": _spared,
    "gpus_empty": _empty,
    "not_empty": _not_empty,
    "waiting": _waiting,
    "note": lambda event: str(event.get("text") or _facts(event)),
    "xid": _xid,
    "stacks": _stacks,
    "log_truncated": _truncated,
    "callback": _called_back,
    "relaunching": _relaunching,
    "run_finished": _finished,
}
