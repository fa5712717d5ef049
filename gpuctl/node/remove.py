"""The verb `remove`: ended runs' folders, by name (`rm`) or by age and number (`prune`), and bundles that nothing uses.

Never a live run's, nor that of a run whose processes live on: the folder is what proves that they are ours. That is
looked at again once the run is locked, since somebody may have relaunched it in between. A line in `history.jsonl`
stays of each, and so does what a job wrote itself; outputs that were set aside go only where asked for. What can't be
deleted is told under `kept`, and keeps nothing else from going.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Optional, Sequence

from gpuctl.node import program
from gpuctl.node.clock import now
from gpuctl.node.folders import RunFolder, StateFolder, sync_folder, try_lock
from gpuctl.node.journal import Event, outline
from gpuctl.node.leases import Leases
from gpuctl.node.machine import Machine, identity
from gpuctl.node.ownership import past, runs_with_processes
from gpuctl.node.processes import scan
from gpuctl.wire.life import Life, fold, row_of
from gpuctl.wire.nodespec import NodeSpec

STALE_S = 24 * 3600.0
"""What was built aside and never renamed into place is a leftover after this time, not work in progress."""

BUNDLE = re.compile(r"([0-9a-f]{64})(\.pyz)?")


class _Stays(Exception):
    """Why a run can't be removed."""


@dataclass
class _Candidate:
    folder: RunFolder
    events: List[Event]
    life: Life


def remove(
    node: NodeSpec,
    *,
    runs: Optional[Sequence[str]] = None,
    older_than_s: Optional[float] = None,
    keep: Optional[int] = None,
    archives: bool = False,
    dry_run: bool = False,
) -> Dict[str, Any]:
    """`removed`: what went, or would go, with its bytes. `kept`: the runs, bundles and paths that stay, and why.

    With `runs`, those. Without, all that ended more than `older_than_s` ago and are not among the `keep` newest, and
    unused bundles.
    """
    state = StateFolder(node)
    folders = [state.existing(run) for run in runs] if runs is not None else state.all_runs()
    candidates = [_candidate(folder) for folder in folders]
    candidates.sort(key=lambda candidate: candidate.life.created or "", reverse=True)
    machine = identity()
    stays = _alive_or_foreign(state, candidates, machine)
    if runs is None:
        stays.update(_wanted_still([c for c in candidates if c.folder.run not in stays], older_than_s, keep))
    removed: List[Dict[str, Any]] = []
    left: List[Dict[str, Any]] = []
    for candidate in candidates:
        if candidate.folder.run not in stays:
            try:
                removed.append(_remove_run(state, node, candidate, left, archives=archives, dry_run=dry_run))
            except _Stays as why:
                stays[candidate.folder.run] = str(why)
    if runs is None:
        if any(not one.life.over and _elsewhere(one.life, machine) is not None for one in candidates):
            left += [{"bundle": name, "why": "a live run of another machine may need it"} for name in _bundles(state)]
        else:
            removed += _remove_bundles(state, left, dry_run=dry_run)
        _remove_leftovers(state, left, dry_run=dry_run)
    return {"removed": removed, "kept": [*({"run": run, "why": why} for run, why in stays.items()), *left]}


def _candidate(folder: RunFolder) -> _Candidate:
    events = outline(folder.journal)
    return _Candidate(folder, events, fold(events))


def _alive_or_foreign(state: StateFolder, candidates: Sequence[_Candidate], machine: Machine) -> Dict[str, str]:
    """The runs that no one may remove now, and why."""
    stays: Dict[str, str] = {}
    with_processes = {past.run for past in runs_with_processes(state, scan())}
    for candidate in candidates:
        run = candidate.folder.run
        why = _why_it_stays(candidate, machine, has_processes=run in with_processes)
        if why is not None:
            stays[run] = why
    return stays


def _why_it_stays(candidate: _Candidate, machine: Machine, *, has_processes: bool) -> Optional[str]:
    run, life = candidate.folder.run, candidate.life
    host = _elsewhere(life, machine)
    if host is not None:
        return f"belongs to {host}"
    if not life.over:
        return f"is live ({life.state}); `gpuctl kill {run}` ends it"
    return "processes of it live still; `gpuctl clean` ends them" if has_processes else None


def _elsewhere(life: Life, machine: Machine) -> Optional[str]:
    """The host whose run it is, where that is another one."""
    known = Machine.from_json(life.machine) if life.machine else None
    return known.host if known is not None and machine.elsewhere(known) else None


def _wanted_still(ended: Sequence[_Candidate], older_than_s: Optional[float], keep: Optional[int]) -> Dict[str, str]:
    """Of ended runs, newest first: those that are too new to go."""
    stays: Dict[str, str] = {}
    for place, candidate in enumerate(ended):
        if keep is not None and place < keep:
            stays[candidate.folder.run] = f"is among the {keep} newest"
        elif older_than_s is not None and _age_s(candidate.life) < older_than_s:
            stays[candidate.folder.run] = f"ended at {candidate.life.ended}"
        elif keep is None and older_than_s is None:
            stays[candidate.folder.run] = "neither an age nor a number to keep was given"
    return stays


def _age_s(life: Life) -> float:
    """Since it ended, by wall time: it may have been before a restart."""
    if life.ended is None:
        return 0.0
    ended = datetime.strptime(life.ended, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    return (datetime.now(timezone.utc) - ended).total_seconds()


def _remove_run(
    state: StateFolder, node: NodeSpec, found: _Candidate, left: List[Dict[str, Any]], *, archives: bool, dry_run: bool
) -> Dict[str, Any]:
    """Raises `_Stays` where somebody took the run up meanwhile (a relaunch), or it can't be removed."""
    folder = found.folder
    lock = _lock(folder)
    try:
        candidate = _candidate(folder)
        ran_since = candidate.life.seq != found.life.seq  # else it has no processes that it had not then
        has_processes = ran_since and past(folder).lives_on(state, scan())
        why = _why_it_stays(candidate, identity(), has_processes=has_processes)
        if why is not None:
            raise _Stays(why)
        set_aside = _archives(candidate.events) if archives else []
        gone = {
            "run": folder.run,
            "state": candidate.life.state,
            "ended": candidate.life.ended,
            "bytes": size_of(folder.path) + sum(map(size_of, set_aside)),
            "archives": set_aside,
        }
        if dry_run:
            return gone
        _remember(state, candidate)
        _close_view(folder)
        try:
            aside = state.unlist(folder)
        except OSError as error:
            raise _Stays(f"can't be removed: {error.strerror}") from error
        Leases(node).release(folder.run)
        for path in (aside, *set_aside):
            _delete(path, left)
        return gone
    finally:
        os.close(lock)


def _lock(folder: RunFolder) -> int:
    try:
        lock = try_lock(folder.lock)
    except FileNotFoundError:
        raise _Stays("somebody else has removed it") from None
    if lock is None:
        raise _Stays("a supervisor has it")
    return lock


def _archives(events: Sequence[Event]) -> List[str]:
    """The outputs that relaunches set aside, as the journal names them (`archived`), so far as they are there still."""
    named = [path for event in events for path in event.get("archived") or []]
    return sorted({path for path in named if os.path.isabs(path) and os.path.lexists(path)})


def _remember(state: StateFolder, candidate: _Candidate) -> None:
    """The line of history that outlives the folder."""
    row = row_of(candidate.folder.spec(), candidate.life).to_json()
    line = json.dumps({**row, "removed": now()}) + "\n"
    fd = os.open(state.history, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(state.path)


def _close_view(folder: RunFolder) -> None:
    if folder.spec().launcher == "tmux":
        from gpuctl.node.terminal import close_view  # only then is there a tmux to ask

        close_view(folder.path)


def _bundles(state: StateFolder) -> List[str]:
    return [name for name in _listing(state.agent) if BUNDLE.fullmatch(name)]


def _remove_bundles(state: StateFolder, left: List[Dict[str, Any]], *, dry_run: bool) -> List[Dict[str, Any]]:
    """Those that neither this process nor any other of this user runs from."""
    used = _digests(program.archive())
    for process in scan():
        used |= _digests(" ".join(process.argv))
    removed = []
    for name in _bundles(state):
        if not _digests(name) & used:
            path = os.path.join(state.agent, name)
            gone = {"bundle": name, "bytes": size_of(path)}
            if dry_run or _delete(path, left):
                removed.append(gone)
    return removed


def _digests(text: str) -> set[str]:
    return {match.group(1) for match in BUNDLE.finditer(text)}


def _remove_leftovers(state: StateFolder, left: List[Dict[str, Any]], *, dry_run: bool) -> None:
    """What a crash left half made, or half removed."""
    for folder in (state.agent, state.runs):
        for name in _listing(folder):
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                if name.startswith(".") and time.time() - os.lstat(path).st_mtime > STALE_S and not dry_run:
                    _delete(path, left)


def _listing(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _delete(path: str, left: List[Dict[str, Any]]) -> bool:
    """A folder or a file; never what a link points to. Whether all of it is gone; what is not, `left` says."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:  # somebody else removes it, too
        return not os.path.lexists(path)
    except OSError as error:
        left.append({"path": path, "why": f"can't be deleted: {error.strerror}: {error.filename}"})
        return False
    return True


def size_of(path: str) -> int:
    """Bytes on the disk, as `du` counts them."""
    return sum(_blocks(each) for each in _all_below(path)) * 512


def _all_below(path: str) -> Iterator[str]:
    yield path
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, folders, files in os.walk(path):
            yield from (os.path.join(folder, name) for name in (*folders, *files))


def _blocks(path: str) -> int:
    try:
        return os.lstat(path).st_blocks
    except FileNotFoundError:
        return 0
