"""Whose a process is, over all runs of a state folder: for what is shown, and for `clean`.

A live run's processes are its supervisor's to end. An ended run's are orphans: nobody watches them any more.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, List, Sequence, Set

from gpuctl.node.folders import RUN_ID, RunFolder, StateFolder, try_lock
from gpuctl.node.journal import outline
from gpuctl.node.processes import Process, ProcessId, alive, environ, find
from gpuctl.node.proof import Proof, marked
from gpuctl.wire.life import Life, fold


@dataclass(frozen=True)
class Past:
    """What a run's journal says of its processes; for a run whose folder was removed, nothing but that it has ended."""

    run: str
    life: Life
    removed: bool = False
    keepers: List[ProcessId] = field(default_factory=list)  # of all attempts: an old one lives while it has children
    jobs: List[ProcessId] = field(default_factory=list)  # their first processes

    @property
    def over(self) -> bool:
        return self.removed or self.life.over

    def lives_on(self, state: StateFolder, listed: Iterable[Process]) -> bool:
        """Whether a keeper or a first process of it lives, or anything that bears its marker."""
        if any(map(alive, (*self.keepers, *self.jobs))):
            return True
        return any(each.alive and marked(environ(each.id.pid) or {}, state.path) == self.run for each in listed)

    def proof(self, state: StateFolder) -> Proof:
        """Whatever runs this is never among its processes."""
        me = find(os.getpid())
        proof = Proof(self.run, state.path, self.keepers, [me.id] if me is not None else [])
        for job in self.jobs:
            proof.remember(job)
        return proof


def past(folder: RunFolder) -> Past:
    events = outline(folder.journal)
    started = [event for event in events if event["type"] == "attempt_started"]
    return Past(
        folder.run,
        fold(events),
        not os.path.isdir(folder.path),
        [ProcessId(event["keeper"], event["keeper_start"]) for event in started if event.get("keeper")],
        [ProcessId(event["pid"], event["pid_start"]) for event in started if event.get("pid")],
    )


def marked_runs(state: StateFolder, listed: Iterable[Process]) -> List[Past]:
    """The runs of this folder that living processes are marked with, also those whose own folder is gone."""
    seen: Set[str] = set()
    for process in listed:
        environment = environ(process.id.pid) or {}
        run = marked(environment, state.path) if process.alive else None
        if run is not None and RUN_ID.fullmatch(run):
            seen.add(run)
    return [past(state.run(run)) for run in sorted(seen)]


def runs_with_processes(state: StateFolder, listed: Iterable[Process]) -> List[Past]:
    """Those, and the ones whose keepers or first processes live, though nothing of theirs may bear a marker."""
    marked_ones = marked_runs(state, listed)
    names = {one.run for one in marked_ones}
    others = [past(folder) for folder in state.all_runs() if folder.run not in names]
    return marked_ones + [one for one in others if any(map(alive, (*one.keepers, *one.jobs)))]


def owners(state: StateFolder, listed: Sequence[Process]) -> Dict[int, str]:
    """By pid, the run that a process provably belongs to: to be shown."""
    return {process.id.pid: one.run for one in marked_runs(state, listed) for process in one.proof(state).ours(listed)}


@contextlib.contextmanager
def unsupervised(folder: RunFolder) -> Iterator[bool]:
    """Holds the run's lock, so that no supervisor can begin meanwhile; False where one has it."""
    if not os.path.isdir(folder.path):
        yield True
        return
    lock = try_lock(folder.lock)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
