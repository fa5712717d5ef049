"""`gpuctl explain`: why a run or a log failed, in words, and what to do about it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any

import click

from gpuctl.cli import completion, options, output, sentences
from gpuctl.cli.following import lost
from gpuctl.errors import NotFound, UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.follow import follow_events, follow_log
from gpuctl.fleet.runs import Found, find
from gpuctl.store import Store
from gpuctl.watchdog.explain import explain

_PIECE = 1 << 20
_IN_MEMORY = 8 << 20  # a longer log goes through a file
_FROM_THE_JOURNAL = ("class", "fatal", "phase", "gpu", "requested_bytes", "total_bytes", "free_bytes", "advice")


@click.command(
    "explain", epilog="Examples: gpuctl explain; gpuctl explain train.log --json; ssh gpu1 cat x.log | gpuctl explain -"
)
@click.argument("what", metavar="[RUN|FILE|-]...", nargs=-1, shell_complete=completion.runs)
@options.as_json
@options.inventory
def command(what: tuple[str, ...], as_json: bool) -> int:
    """Say why a run's last failed attempt, or a log, failed, and what to do about it.

    Nothing given: the newest run launched from here. With --json one object for each, in order.
    """
    if what and all(_is_log(word) for word in what):
        return _show([_of_log(word) for word in what], as_json)  # no node and no inventory is needed
    return options.performed(_explain(what or (None,), as_json))


async def _explain(words: tuple[str | None, ...], as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        found = [
            _of_log(word) if word is not None and _is_log(word) else await _of_word(fleet, store, word)
            for word in words
        ]
    return _show(found, as_json)


def _is_log(word: str) -> bool:
    return word == "-" or Path(word).exists()


def _of_log(word: str) -> dict[str, Any]:
    if word == "-":
        return explain(_pieces(sys.stdin.buffer)).to_json("-")
    try:
        with Path(word).open("rb") as log:
            return explain(_pieces(log)).to_json(word)
    except OSError as error:
        raise UsageError(f"{word}: {error.strerror}", "name a log, a run, or - for standard input") from None


def _pieces(log: IO[bytes]) -> Iterator[bytes]:
    while piece := log.read(_PIECE):
        yield piece


async def _of_word(fleet: Fleet, store: Store, word: str | None) -> dict[str, Any]:
    if word is not None and ("/" in word or "." in word):
        raise NotFound(f"{word}: there is no such log", "name a file that exists, a run, or - for standard input")
    return await _of_run(fleet, await find(fleet, store, word))


async def _of_run(fleet: Fleet, found: Found) -> dict[str, Any]:
    """What its log says, and above that what its supervisor found, which also knew the exit and the GPUs."""
    agent = fleet.agent(found.node)
    events = follow_events(agent, found.run, follow=False, lost=lost)
    async with aclosing(events):
        attempt, incident = last_failure([event async for event in events])
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as log:
        chunks = follow_log(agent, found.run, attempt=attempt, follow=False, lost=lost)
        async with aclosing(chunks):
            async for chunk in chunks:
                log.write(chunk.data)
        log.seek(0)
        told = explain(_pieces(log)).to_json(f"{found.run}/attempts/{attempt or 1}/log")
    return {**told, **_journaled(incident), "run": found.run, "attempt": attempt}


def last_failure(events: list[dict[str, Any]]) -> tuple[int | None, dict[str, Any] | None]:
    """The last attempt that failed, and its fatal incident; where none failed, the last one, with its last incident."""
    fatal = [event for event in events if event["type"] == "incident" and event.get("fatal", True)]
    failed = [event for event in events if event["type"] == "attempt_exited" and event.get("exit_code") != 0]
    numbers = [event["attempt"] for event in (*fatal, *failed) if event.get("attempt")]
    if not numbers:
        started = [event.get("attempt") for event in events if event["type"] == "attempt_started"]
        return (started[-1] if started else None), None
    attempt = max(numbers)
    return attempt, next((event for event in reversed(fatal) if event.get("attempt") == attempt), None)


def _journaled(incident: dict[str, Any] | None) -> dict[str, Any]:
    if incident is None:
        return {}
    facts = {key: incident[key] for key in _FROM_THE_JOURNAL if incident.get(key) is not None}
    evidence = [item for item in incident.get("evidence") or [] if isinstance(item, dict)]
    if evidence:
        facts["evidence"] = [
            {"line": item.get("line") or None, "text": item.get("text"), "source": item.get("source")}
            for item in evidence  # line 0: it is no line of a file, but how the attempt ended, say
        ]
    if incident.get("class"):
        facts["verdict"] = f"Attempt {incident.get('attempt')} failed: {str(incident['class']).replace('_', ' ')}."
    return facts


def _show(found: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        for one in found:
            output.json_line(one)
        return 0
    for one in found:
        for line in _lines(one):
            output.line(line)
    return 0


def _lines(one: dict[str, Any]) -> Iterator[str]:
    yield f"{one['file']}: {one['verdict']}"
    asked, advice = sentences.memory_numbers(one)
    if asked:
        yield f"  {asked}" + (f", on GPU {one['gpu']}" if one["gpu"] is not None else "")
    for evidence in one["evidence"]:
        where = f"line {evidence['line']}" if evidence["line"] else evidence.get("source") or "beside the log"
        yield f"  {where}: {evidence['text']}"
    if advice:
        yield f"  {advice}"
