"""`Pursuit`: follows the journals of runs, round by round, for the verbs that stream.

It also mends: a run whose supervisor and keeper both died changes no file any more, so it looks for those now and then.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from typing import Callable, Collection, Iterator, List, Optional, Sequence, Set, Tuple

from gpuctl.node.clock import boottime
from gpuctl.node.folders import RunFolder, StateFolder
from gpuctl.node.journal import Event, Reader, last
from gpuctl.node.link import Outlet
from gpuctl.node.machine import Machine
from gpuctl.node.waiter import Waiter
from gpuctl.wire.life import Life, fold

LOOK_S = 5.0
RECENT = timedelta(hours=24)
STARTING_S = 60.0

Revive = Callable[[RunFolder], object]
"""Starts a supervisor for a run and returns once it watches, or has found the run lost."""

Round = List[Tuple[str, Event]]  # run, event


class Tail:
    """A run with its life so far; `read` answers what its journal has gained."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.life = Life()
        self._reader = Reader(folder.journal)

    def read(self) -> List[Event]:
        events = self._reader.read()
        self.life = fold(events, self.life)
        return events


class Pursuit:
    def __init__(self, tails: Sequence[Tail], machine: Machine, revive: Revive) -> None:
        self.tails = list(tails)
        self._machine = machine
        self._revive = revive
        self._newcomers: Optional[StateFolder] = None
        self._passed: Set[str] = set()

    @classmethod
    def of_all(cls, state: StateFolder, machine: Machine, revive: Revive) -> Pursuit:
        """All runs that live or ended lately, and those that come; it never ends by itself."""
        pursuit = cls([], machine, revive)
        pursuit._newcomers = state
        pursuit._admit()
        return pursuit

    def rounds(self, link: Outlet, *, every_s: Optional[float] = None, also: Collection[str] = ()) -> Iterator[Round]:
        """New events, often none: a round for each change and one every `every_s`, until all runs have ended.
        `also` holds other paths whose change is worth a round; it may grow."""
        waiter = Waiter()
        watched: Set[str] = set()
        next_look = boottime()
        try:
            while True:
                for path in self._paths(also) - watched:
                    waiter.watch(path)
                    watched.add(path)
                events = [(tail.folder.run, event) for tail in self.tails for event in tail.read()]
                ended = self._newcomers is None and all(tail.life.over for tail in self.tails)
                yield events
                if ended:
                    return
                if boottime() >= next_look:
                    next_look = boottime() + LOOK_S
                    self._look()
                if self._paths(also) - watched:
                    continue  # what is new is watched first and read after, so that no change falls between
                woke = link.wait(waiter, LOOK_S if every_s is None else every_s)
                if self._newcomers is not None and self._newcomers.runs in woke:
                    self._admit()
        finally:
            waiter.close()

    def _paths(self, also: Collection[str]) -> Set[str]:
        """All whose change is worth a round."""
        newcomers = [self._newcomers.runs] if self._newcomers is not None else []
        return {*also, *newcomers, *(tail.folder.journal for tail in self.tails)}

    def _look(self) -> None:
        for tail in self.tails:
            if orphaned(tail.folder, tail.life, self._machine):
                self._revive(tail.folder)
        if self._newcomers is not None:
            self._passed.clear()  # one that ended long ago may have been relaunched
            self._admit()

    def _admit(self) -> None:
        assert self._newcomers is not None
        known = {tail.folder.run for tail in self.tails} | self._passed
        for folder in self._newcomers.all_runs():
            if folder.run not in known:
                if ended_long_ago(folder):
                    self._passed.add(folder.run)
                else:
                    self.tails.append(Tail(folder))


def orphaned(folder: RunFolder, life: Life, machine: Machine) -> bool:
    """Is it a live run of this machine that no supervisor watches? One whose folder was removed is none."""
    if life.over or not os.path.isdir(folder.path):
        return False
    if life.seq == 0 and _new(folder.path):
        return False  # whoever makes it is about to start its supervisor, and hands it the secrets
    if life.machine and machine.elsewhere(Machine.from_json(life.machine)):
        return False
    return not folder.supervised()


def _new(path: str) -> bool:
    try:
        return 0 <= time.time() - os.stat(path).st_mtime < STARTING_S
    except FileNotFoundError:
        return False


def ended_long_ago(folder: RunFolder) -> bool:
    """More than 24 h ago; told by its last event alone, since a node may keep hundreds of such runs."""
    event = last(folder.journal)
    if event is None or event["type"] != "run_finished":
        return False
    ended = datetime.strptime(event["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    return datetime.now(timezone.utc) - ended > RECENT
