"""The verb `replay`: a run of this node, or a copied run's folder, through today's judge and another policy.

{"run" or "folder", "changes": keys of a run spec} → {"run", "job", "attempts": […], "missing": [logs]}
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Tuple

from gpuctl.node import ledger, ledger_file, shell
from gpuctl.node.attempt import Attempt
from gpuctl.node.folders import RunFolder, StateFolder, expand
from gpuctl.node.history import History, exit_of
from gpuctl.node.journal import Event, read
from gpuctl.node.recording import NAME, read_moments
from gpuctl.node.refusal import BAD_USAGE, NO_SUCH_RUN, Refusal
from gpuctl.node.watching import read_standing, time_limit
from gpuctl.watchdog.moments import Moment
from gpuctl.watchdog.replay import Recorded, replay
from gpuctl.wire.incidents import AttemptRecord, Exit
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec


def answer(node: NodeSpec, request: Mapping[str, Any]) -> Dict[str, Any]:
    """Raises Refusal where there is no such run."""
    if request.get("folder") is not None:
        folder, entries = RunFolder(expand(str(request["folder"]))), []
    else:
        state = StateFolder(node)
        folder = state.existing(str(request["run"]))
        entries = ledger_file.read(state, folder.spec().job)
    try:
        before = folder.spec()
        spec = RunSpec.from_json({**before.to_json(), **(request.get("changes") or {})})
    except FileNotFoundError:
        hint = "name a copy of .gpuctl/runs/RUN on its node"
        raise Refusal(NO_SUCH_RUN, f"{folder.path} is no run's folder: it has no spec.json", hint) from None
    except (TypeError, KeyError, ValueError) as error:
        raise Refusal(BAD_USAGE, f"{folder.spec_file} can't be read: {error}", "") from None
    with contextlib.ExitStack() as files:
        recording = _Recording(folder, before, entries, files)
        attempts = replay(spec, recording.attempts(), guard=time_limit)
    return {"run": before.run, "job": before.job, "attempts": attempts, "missing": sorted(recording.missing)}


class _Recording:
    """A run's folder, read for the replay."""

    def __init__(
        self, folder: RunFolder, spec: RunSpec, entries: Sequence[LedgerEntry], files: contextlib.ExitStack
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._entries = entries
        self._files = files
        self.missing: List[str] = []

    def attempts(self) -> List[Recorded]:
        events = read(self._folder.journal)
        starts = [index for index, event in enumerate(events) if event["type"] == "attempt_started"]
        records = {record.attempt: record for record in History(events).attempts}
        found = []
        for index, until in zip(starts, [*starts[1:], len(events)]):
            resumed = until < len(events) and events[until].get("resumed_from") is not None
            if any(event.get("never_begun") for event in events[index:until]):
                continue  # nothing of it ran, so there is nothing to judge
            found.append(self._attempt(records[events[index]["attempt"]], events[index:until], resumed))
        return found

    def _attempt(self, record: AttemptRecord, events: Sequence[Event], resumes: bool) -> Recorded:
        started = events[0]
        exited = _first(events, "attempt_exited")
        cleaning = _first(events, "cleaning")
        followed = _first(events, "relaunching", "run_finished")
        moments = read_moments(os.path.join(self._folder.attempt(record.attempt).path, NAME))
        by_us = cleaning is not None and (exited is None or cleaning["seq"] < exited["seq"])
        return Recorded(
            record, started["mono_s"],
            exited["mono_s"] if exited is not None else None,
            self._exit(record, exited),
            ended_by_us=by_us,
            asked=by_us and record.incident is None,
            followed=followed,
            resumes=resumes if followed is None else followed.get("resumes", resumes),
            moments=moments,
            logs=self._logs(started, record, moments),
            uuids={str(index): uuid for index, uuid in zip(started.get("gpus", []), started.get("uuids", []))},
            total_mib=started.get("total_mib"),
            ledger=self._ledger(started, exited),
        )  # fmt: skip

    def _exit(self, record: AttemptRecord, exited: Optional[Event]) -> Exit:
        if exited is None:
            return Exit()
        done = os.path.join(self._folder.attempt(record.attempt).path, shell.SETUP_DONE)
        failed = bool(self._spec.setup.strip()) and not os.path.exists(done) and exited.get("exit_code") != 0
        return replace(exit_of(exited), setup_failed=failed)

    def _ledger(self, started: Event, exited: Optional[Event]) -> List[LedgerEntry]:
        """What the ledger knew when this attempt had ended."""
        until = [entry for entry in self._entries if exited is not None and entry.time <= exited["time"]]
        return ledger.known_to(until, self._spec, started)

    def _logs(self, started: Event, record: AttemptRecord, moments: Sequence[Moment]) -> Dict[str, BinaryIO]:
        """Each log that was followed, at this attempt's first byte. The job's own are as they are today."""
        names = {"log", *(source for moment in moments for source in moment.read)}
        places = self._places(started, record)
        found: Dict[str, BinaryIO] = {}
        for name in sorted(names):
            opened = self._open(name, places)
            if opened is None:
                self.missing.append(f"{name} of attempt {record.attempt}")
            else:
                found[name] = opened
        return found

    def _places(self, started: Event, record: AttemptRecord) -> Tuple[str, str, Dict[str, Any]]:
        """The attempt's folder, its workdir, and where the logs there had ended before it."""
        folder = self._folder.attempt(record.attempt)
        params = {**self._spec.params, **record.params}
        known = shell.values(self._spec, params, record.attempt, len(started.get("gpus", [])), 0)
        return folder.path, shell.workdir(self._spec, known), read_standing(Attempt(folder, None, None))

    def _open(self, name: str, places: Tuple[str, str, Dict[str, Any]]) -> Optional[BinaryIO]:
        attempt_dir, workdir, marks = places
        for path in (os.path.join(attempt_dir, name), os.path.join(workdir, name)):
            if os.path.isfile(path):
                file = self._files.enter_context(open(path, "rb"))  # noqa: SIM115  (the stack closes it)
                mark = marks.get(path)
                if mark is not None and mark.holds(file.fileno()):
                    file.seek(mark.offset)
                return file
        return None


def _first(events: Sequence[Event], *types: str) -> Optional[Event]:
    return next((event for event in events if event["type"] in types), None)
