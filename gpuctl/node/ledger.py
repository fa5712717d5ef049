"""The ledger (`ledger_file`): what each attempt that ended on GPUs of its own has shown about its values, who enters it
and who asks it. The folder of a run may be removed, its entries stay."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from gpuctl.node import shell
from gpuctl.node.clock import now
from gpuctl.node.folders import StateFolder
from gpuctl.node.ledger_file import append, read
from gpuctl.node.recording import NAME, read_moments
from gpuctl.watchdog.gpu_memory import held_by_others
from gpuctl.watchdog.ledger import env_of, same, template_of, with_code
from gpuctl.watchdog.moments import worked_s
from gpuctl.wire.incidents import AttemptRecord, Exit
from gpuctl.wire.ledger import OUT_OF_MEMORY, LedgerEntry
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.samples import DeviceSample

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor

WORKED_S = 2.0  # of its GPUs, that show that an attempt works


def experience(state: StateFolder, spec: RunSpec, devices: Sequence[DeviceSample]) -> List[LedgerEntry]:
    """The entries that count for this job on these devices."""
    return same(read(state, spec.job), template_of(spec), *model_of(devices)[:2]) if devices else []


def experience_of(supervisor: Supervisor) -> List[LedgerEntry]:
    """The entries that count for the run's next values, after its last attempt."""
    return known_to(read(StateFolder(supervisor.node), supervisor.spec.job), supervisor.spec, supervisor.record.started)


def known_to(entries: Iterable[LedgerEntry], spec: RunSpec, started: Optional[Mapping[str, Any]]) -> List[LedgerEntry]:
    """Those that count after an attempt that was `started` so, its own among them."""
    if started is None or not started.get("model"):
        return []
    mine = same(entries, template_of(spec), started["model"], len(started.get("gpus", [])))
    return with_code(mine, started.get("code"))


def answer(node: NodeSpec, job: Optional[str] = None, spec: Optional[RunSpec] = None) -> Dict[str, Any]:
    """The verb `ledger`: its entries, the rows of runs whose folders were removed, and what code the spec would run."""
    state = StateFolder(node)
    removed = [row for row in _json_lines(state.history) if job is None or row.get("job") == job]
    code = shell.code_of(shell.workdir(spec, shell.values(spec, spec.params, 1, 0, 0))) if spec is not None else None
    return {"entries": [entry.to_json() for entry in read(state, job)], "removed": removed, "code": code}


def model_of(devices: Sequence[DeviceSample]) -> Tuple[str, int, Optional[int]]:
    """What stands for these devices in the ledger: model, number, and the memory of the smallest."""
    models = sorted({device.name or "an unnamed GPU" for device in devices})
    totals = [device.memory_total_mib for device in devices if device.memory_total_mib is not None]
    return " + ".join(models), len(devices), min(totals, default=None)


def enter(supervisor: Supervisor, exit: Exit) -> None:
    """The current attempt, which has ended, unless it shows nothing: without GPUs, or beside memory of others.

    Of a run that shares its GPUs nobody knows what they will hold next time: it shows what fitted, but no failure and
    no peak.
    """
    record, started = supervisor.record, supervisor.record.started
    if started is None or not started.get("model") or not record.attempts[-1].gpus_were_empty:
        return
    entry = _entry(supervisor, started, exit)
    incident = record.attempts[-1].incident
    shared = supervisor.spec.share
    if entry.too_big and (shared or any(map(held_by_others, incident.evidence[:1] if incident is not None else []))):
        return
    if shared or not supervisor.eyes.company.alone:
        entry = replace(entry, peak_mib=None, loaded_mib=None)
    try:
        append(StateFolder(supervisor.node), entry)
    except OSError as error:
        record.write("note", text=f"the ledger could not be written: {error}")


def _entry(supervisor: Supervisor, started: Any, exit: Exit) -> LedgerEntry:
    spec, eyes, attempt = supervisor.spec, supervisor.eyes, supervisor.record.attempts[-1]
    cls = attempt.incident.cls if attempt.incident is not None else None
    worked = (exit.exit_code == 0 and cls is None) or _worked(supervisor, attempt, started)
    return LedgerEntry(
        run=spec.run, attempt=attempt.attempt, job=spec.job, template=template_of(spec),
        model=started["model"], count=len(started.get("gpus", [])), params=attempt.params,
        fitted=worked and cls not in OUT_OF_MEMORY, cls=cls, exit_code=exit.exit_code, code=started.get("code"),
        env=env_of(spec, attempt.params), total_mib=started.get("total_mib"), loaded_mib=eyes.loaded_mib,
        peak_mib=max(eyes.peak_mib.values(), default=None), loading_s=attempt.loading_s,
        duration_s=exit.duration_s, node=spec.node, time=now(),
    )  # fmt: skip


def _worked(supervisor: Supervisor, attempt: AttemptRecord, started: Mapping[str, Any]) -> bool:
    """Whether it did what it was made for. Any bar is progress, that of preparing data too: it counts where the job
    file says which lines do, else once the GPUs have worked."""
    spec = supervisor.spec
    if spec.probe:
        return supervisor.shown
    if spec.type == "service" and supervisor.record.ready:  # of others that only says that the model fits
        return True
    if not attempt.progressed or spec.watch.progress is not None:
        return attempt.progressed
    if spec.watch.ready is not None and supervisor.record.ready:
        return True
    moments = read_moments(os.path.join(supervisor.run.attempt(attempt.attempt).path, NAME))
    return worked_s(moments, started["mono_s"] + (attempt.loading_s or 0.0)) >= WORKED_S


def _json_lines(path: str) -> List[Dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
