"""`gpuctl history`: past runs, what fitted and what did not and why, and what the failures cost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from gpuctl.cli import options, output, sentences
from gpuctl.cli.ps import told
from gpuctl.errors import NotFound
from gpuctl.fleet.history import History, Past, Values, gpu_hours, history, values
from gpuctl.spec.job import load_job
from gpuctl.wire.ledger import LedgerEntry


@click.command(
    "history",
    epilog="Example: gpuctl history eagle3-train. Costs are shown for nodes with `gpu_hour_cost` in the inventory.",
)
@click.argument("job", required=False)
@click.option("--node", "nodes", metavar="N", multiple=True, help="Only this node's (repeatable; a,b; label=value).")
@options.as_json
@options.inventory
def command(job: str | None, nodes: tuple[str, ...], as_json: bool) -> int:
    """Show past runs: what fitted, what did not and why, and the GPU hours that failures cost.

    JOB: a job's name, or its file.
    """
    name = load_job(Path(job)).name if job is not None and Path(job).is_file() else job
    return options.performed(_history(name, nodes, as_json))


async def _history(job: str | None, nodes: tuple[str, ...], as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        with output.doing("asking the nodes"):
            found = await history(fleet, options.chosen(fleet.inventory, nodes), store, job=job)
    if job is not None and not found.past and not found.errors:
        raise NotFound(f"no run of a job {job!r} is known", "gpuctl history lists them all")
    if as_json:
        output.document(_document(found))
    else:
        output.table(_table(found))
        if found.past:
            output.note(_in_all(found))
    return told(found.errors)


def _table(found: History) -> output.Table:
    priced = any(past.cost is not None for past in found.past)
    columns = [
        "run",
        "state",
        "node",
        "ended",
        "fitted",
        "failed",
        "gpu hours",
        "lost",
        *(["cost lost"] if priced else []),
    ]
    names = _telling(found.past)
    rows = [
        [*_row(past, names.get(past.job, [])), *([_money(past.cost_lost)] if priced else [])] for past in found.past
    ]
    return output.Table(columns, rows, empty="no past runs")


def _row(past: Past, names: list[str]) -> list[str | None]:
    fitted = {_values(entry, names): _memory(entry) for entry in past.attempts if entry.fitted}
    failed = [f"{_values(entry, names)} {entry.cls}".strip() for entry in past.attempts if entry.cls is not None]
    return [
        past.run,
        past.row.state if past.row else None,
        f"{past.node.name} (not asked)" if past.seen else past.node.name,
        sentences.when(past.row.ended if past.row else past.attempts[-1].time),
        ", ".join(f"{text} {memory}".strip() for text, memory in fitted.items()) or None,
        ", ".join(failed) or None,
        _hours(past.gpu_hours),
        _hours(past.gpu_hours_lost),
    ]


def _telling(past: Iterable[Past]) -> dict[str, list[str]]:
    """Per job, the parameters that tell its attempts apart; all of them where nothing ever changed."""
    found: dict[str, list[LedgerEntry]] = {}
    for one in past:
        found.setdefault(one.job, []).extend(one.attempts)
    names = {}
    for job, attempts in found.items():
        known = list(dict.fromkeys(name for entry in attempts for name in entry.params))
        changed = [name for name in known if len({repr(entry.params.get(name)) for entry in attempts}) > 1]
        names[job] = changed or known
    return names


def _values(entry: LedgerEntry, names: list[str]) -> str:
    return sentences.params({name: entry.params[name] for name in names if name in entry.params})


def _memory(entry: LedgerEntry) -> str:
    if entry.peak_mib is None or entry.total_mib is None:
        return ""
    return f"({entry.peak_mib / 1024:.1f} of {entry.total_mib / 1024:.1f} GiB)"


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.01 or hours == 0 else "<0.01"


def _money(cost: float | None) -> str | None:
    return None if cost is None else f"{cost:.2f}"


def _in_all(found: History) -> str:
    text = f"in all {_hours(found.gpu_hours)} GPU hours, {_hours(found.gpu_hours_lost)} of them lost to failures"
    return text if found.cost_lost is None else f"{text}, which cost {found.cost_lost:.2f}"


def _document(found: History) -> dict[str, Any]:
    return {
        "runs": [_run(past) for past in found.past],
        "values": [_known(known) for known in values(found.past)],
        "gpu_hours": round(found.gpu_hours, 6),
        "gpu_hours_lost": round(found.gpu_hours_lost, 6),
        "cost_lost": found.cost_lost,
    }


def _run(past: Past) -> dict[str, Any]:
    row = past.row
    return {
        "run": past.run,
        "job": past.job,
        "node": past.node.name,
        "state": row.state if row else None,
        "created": row.created if row else None,
        "ended": row.ended if row else None,
        "why": row.why if row else None,
        "by": row.by if row else None,
        "removed": past.removed,
        "attempts": [_attempt(entry) for entry in past.attempts],
        "gpu_hours": round(past.gpu_hours, 6),
        "gpu_hours_lost": round(past.gpu_hours_lost, 6),
        "cost": past.cost,
        "cost_lost": past.cost_lost,
    }


def _attempt(entry: LedgerEntry) -> dict[str, Any]:
    facts = entry.to_json()
    kept = ("attempt", "params", "fitted", "exit_code", "peak_mib", "total_mib", "loading_s", "duration_s", "time")
    return {
        **{key: facts[key] for key in kept},
        "class": entry.cls,
        "model": entry.model,
        "gpus": entry.count,
        "gpu_hours": round(gpu_hours([entry]), 6),
    }


def _known(known: Values) -> dict[str, Any]:
    return {
        "job": known.job,
        "template": known.template,
        "model": known.model,
        "gpus": known.count,
        "fitted": [{"params": entry.params, "peak_mib": entry.peak_mib, "run": entry.run} for entry in known.fitted],
        "failed": [{"params": entry.params, "class": entry.cls, "run": entry.run} for entry in known.failed],
    }
