"""The verbs that only read: `ps`, `events`, `log`, `stream`.

They change nothing of a run, but each sees to it that a live one has a supervisor: any contact with the node mends what
a crash left behind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from gpuctl.node.clock import boottime, now
from gpuctl.node.folders import RunFolder, StateFolder
from gpuctl.node.journal import outline, read
from gpuctl.node.leases import Leases
from gpuctl.node.link import Link
from gpuctl.node.logs import Log
from gpuctl.node.machine import Machine, identity
from gpuctl.node.pursuit import Pursuit, Revive, Tail, ended_long_ago, orphaned
from gpuctl.wire.life import fold, row_of
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.replies import RunRow
from gpuctl.wire.samples import Sample


class Queries:
    def __init__(self, node: NodeSpec, revive: Revive, machine: Optional[Machine] = None) -> None:
        self._node = node
        self._state = StateFolder(node)
        self._revive = revive
        self._machine = machine if machine is not None else identity()

    def ps(self, *, all: bool = False, runs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Live runs and those that ended in the last 24 h, oldest first; earlier ones with `all` or by id."""
        rows = [row for row in map(self._row, self._folders(all, runs)) if row is not None]
        rows.sort(key=lambda row: (row.created or "", row.run))
        return {"runs": [row.to_json() for row in self._placed(rows)], "now": now()}

    def events(self, link: Link, run: str, *, after: int = 0, follow: bool = False) -> None:
        """The journal's lines above `after`; with `follow` on, until the run has ended."""
        folder = self._state.existing(run)
        if not follow:
            for event in read(folder.journal, after):
                link.send(event)
            return
        for events in Pursuit([Tail(folder)], self._machine, self._revive).rounds(link):
            for _, event in events:
                if event["seq"] > after:
                    link.send(event)

    def log(
        self,
        link: Link,
        run: str,
        *,
        attempt: Optional[int] = None,
        file: Optional[str] = None,
        offset: Optional[int] = None,
        lines: Optional[int] = None,
        follow: bool = False,
    ) -> None:
        """The latest attempt's bytes, or `attempt`'s. With `follow` on over later attempts, until the run has ended.

        An `attempt` alone is followed to its own end; with an `offset` it is the place to go on from after a cut.
        """
        log = Log(self._state.existing(run), file)
        text = log.first(attempt, offset, lines, follow=follow)
        if not follow:
            text.send(link)
            return
        pursuit = Pursuit([log.tail], self._machine, self._revive)
        log.follow(link, text, pursuit, over_attempts=attempt is None or offset is not None)

    def stream(
        self,
        link: Link,
        *,
        runs: Optional[Sequence[str]] = None,
        after: Optional[Mapping[str, int]] = None,
        sample: Optional[Callable[[], Sample]] = None,
        every_s: float = 1.0,
    ) -> None:
        """The events of these runs until all have ended; without `runs`, of all that live or come, without end.

        `after`: the last event that the caller has of each. With `sample`, telemetry too, every `every_s`.
        """
        seen = dict(after or {})
        if runs is not None:
            pursuit = Pursuit([Tail(self._state.existing(run)) for run in runs], self._machine, self._revive)
        else:
            pursuit = Pursuit.of_all(self._state, self._machine, self._revive)
            for folder in (tail.folder for tail in pursuit.tails):
                life = fold(outline(folder.journal))
                if life.over:
                    seen.setdefault(folder.run, life.seq)  # what has ended before anyone asked is for `ps`
        next_sample = boottime()
        for events in pursuit.rounds(link, every_s=None if sample is None else every_s):
            for run, event in events:
                if event["seq"] > seen.get(run, 0):
                    link.send({"run": run, "event": event})
            if sample is not None and boottime() >= next_sample:
                next_sample = boottime() + every_s
                link.send({"sample": sample().to_json()})

    def _folders(self, all: bool, runs: Optional[Sequence[str]]) -> List[RunFolder]:
        folders = self._state.all_runs()
        if runs is not None:
            return [folder for folder in folders if folder.run in runs]
        return folders if all else [folder for folder in folders if not ended_long_ago(folder)]

    def _row(self, folder: RunFolder) -> Optional[RunRow]:
        """None for a folder that is no run's (any more): the others are to be seen all the same."""
        try:
            spec = folder.spec()
            life = fold(outline(folder.journal))
            if orphaned(folder, life, self._machine):
                self._revive(folder)
                life = fold(outline(folder.journal))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return row_of(spec, life, here=self._machine.host)

    def _placed(self, rows: List[RunRow]) -> List[RunRow]:
        """With their place in the queue. Only then is the folder of leases needed."""
        if all(row.state != "queued" for row in rows):
            return rows
        leases = Leases(self._node, self._machine)
        return [replace(row, queue_place=leases.place(row.run)) if row.state == "queued" else row for row in rows]
