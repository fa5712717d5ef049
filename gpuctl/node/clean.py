"""The verb `clean`: ends orphans of ended runs, names and spares everybody else, verifies that the GPUs are empty.

A live run is never touched. With `force`, processes of the same user that hold memory on these GPUs are ended too;
never a protected one, another user's, another container's, or one that bears the mark of any run.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Set

from gpuctl.node import processes, program
from gpuctl.node.emptiness import UNKILLABLE, UNREADABLE, Readings, wait_empty
from gpuctl.node.folders import StateFolder
from gpuctl.node.holders import container, described, holder
from gpuctl.node.ownership import Past, past, runs_with_processes, unsupervised
from gpuctl.node.processes import Process, ProcessId, environ, namespace
from gpuctl.node.proof import MARKER, Proof, multiplexer
from gpuctl.node.reaper import end, end_only
from gpuctl.node.refusal import BAD_USAGE, Refusal
from gpuctl.node.telemetry import Telemetry
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.replies import CleanReport, Holder
from gpuctl.wire.runspec import Stop
from gpuctl.wire.samples import DeviceSample

STOP = Stop("TERM", 5.0)
EMPTY_DEADLINE_S = 10.0
ORDERED = "holds memory on these GPUs, and a person ordered it"


def clean(
    node: NodeSpec,
    *,
    gpus: Optional[Sequence[int]],
    dry_run: bool,
    force: bool,
    only: Optional[Collection[ProcessId]] = None,
) -> CleanReport:
    with Telemetry(node, program.argv("sample")) as telemetry:
        return Cleaner(node, telemetry, gpus).clean(dry_run=dry_run, force=force, only=only)


class Cleaner:
    """What uses the GPUs now, and whose that is; one for each call."""

    def __init__(self, node: NodeSpec, telemetry: Readings, gpus: Optional[Sequence[int]]) -> None:
        self._node = node
        self._telemetry = telemetry
        self._state = StateFolder(node)
        self._all = gpus is None
        sample = telemetry.sample()
        self._error = sample.error
        self._devices = self._chosen(sample.devices, gpus)
        self._owner: Dict[int, str] = {}
        self._broken: Dict[int, str] = {}  # by pid: why it is not ours although it nearly is
        self._orphans: Dict[str, List[Process]] = {}
        self._proofs: Dict[str, Proof] = {}
        self._live: Set[str] = set()
        self._killed: Dict[ProcessId, Process] = {}
        self._left: List[Process] = []
        listed = processes.scan()
        for one in runs_with_processes(self._state, listed):
            self._learn(one, listed)
        apart = [] if telemetry.pid is None else [telemetry.pid]
        self._holders = described(node, self._devices, self._owner, apart)

    def clean(self, *, dry_run: bool, force: bool, only: Optional[Collection[ProcessId]] = None) -> CleanReport:
        """`only`: what a person has seen and agreed to; nobody else is ended, but what these bring forth meanwhile."""
        ordered = [one for one in self._holders if force and self._why_not(one) is None]
        if only is not None:
            ordered = [one for one in ordered if ProcessId(one.pid, one.start) in only]
            self._orphans = {
                run: ours for run, ours in self._orphans.items() if any(process.id in only for process in ours)
            }
        if dry_run:
            targets = [process for ours in self._orphans.values() for process in ours]
            targets += [process for process in map(_process, ordered) if process is not None]
            self._killed = {process.id: process for process in targets}
        else:
            for run in list(self._orphans):
                self._end(run)
            targets = [process for process in map(_process, ordered) if process is not None]
            self._left += end_only(targets, STOP, ORDERED, pause=time.sleep, on_kill=self._note)
        return self._report(dry_run)

    def _chosen(self, devices: Iterable[DeviceSample], gpus: Optional[Sequence[int]]) -> List[DeviceSample]:
        usable = [one for one in devices if self._node.gpus is None or one.index in self._node.gpus]
        indices = [one.index for one in usable]
        missing = [index for index in gpus or [] if index not in indices]
        if missing and usable:
            raise Refusal(
                BAD_USAGE,
                f"node {self._node.name} has no GPU {', '.join(map(str, missing))} that is ours to use",
                f"there are {', '.join(map(str, indices))}",
            )
        return [one for one in usable if gpus is None or one.index in gpus]

    def _learn(self, one: Past, listed: Sequence[Process]) -> None:
        proof = one.proof(self._state)
        verdict = proof.read(listed)
        self._owner.update((process.id.pid, one.run) for process in verdict.ours)
        self._broken.update((spared.process.id.pid, spared.why) for spared in verdict.spared)
        if not one.over:
            self._live.add(one.run)
        elif verdict.ours and self._meant(one, verdict.ours):
            self._orphans[one.run] = verdict.ours
            self._proofs[one.run] = proof

    def _meant(self, one: Past, ours: Sequence[Process]) -> bool:
        """Whether this run may be on the chosen GPUs: it had one of them, or NVML names a process of it there."""
        if self._all:
            return True
        chosen = {device.index for device in self._devices}
        named = {process.pid for device in self._devices for process in device.processes or []}
        visible = {index for process in ours for index in _visible(environ(process.id.pid) or {})}
        return bool(chosen & {*one.life.gpus, *visible} or named & {process.id.pid for process in ours})

    def _end(self, run: str) -> None:
        """Ends an ended run's orphans, with its lock held: a person's relaunch would bring it to life again."""
        folder = self._state.run(run)
        with unsupervised(folder) as free:
            if free and past(folder).over:
                reaped = end(None, self._proofs[run], STOP, pause=time.sleep, on_kill=self._note)
                self._left += reaped.left
            else:
                self._live.add(run)

    def _note(self, process: Process, _signal: str, _why: str) -> None:
        self._killed[process.id] = process

    def _why_not(self, one: Holder) -> Optional[str]:
        """Why even `force` does not end it; None where it does."""
        process = _process(one)
        mark = (environ(one.pid) or {}).get(MARKER)
        if one.ours is not None:
            live = one.ours in self._live
            return f"belongs to the run {one.ours}" + (f"; `gpuctl kill {one.ours}` ends it" if live else "")
        if one.pid in self._broken:
            return self._broken[one.pid]
        if one.protected:
            return "is protected"
        if process is None:
            return "has ended meanwhile"
        if process.uid != os.geteuid():
            return f"belongs to another user, {one.user}"
        if container(one.pid) != container(os.getpid()) or namespace(one.pid) != namespace(os.getpid()):
            return f"is in another container, {container(one.pid) or 'by its PID namespace'}"
        if mark is not None:
            return f"bears the mark of the run {mark}, which is not in {self._state.runs}"
        if multiplexer(process) or one.pid in _ancestors():
            return "may be where you are sitting"
        if not one.gpus or one.used_mib == 0:
            return "has device files open, but no memory on these GPUs"
        return None

    def _report(self, dry_run: bool) -> CleanReport:
        plain = {one.pid: one for one in self._holders}
        killed = [
            plain.get(process.id.pid) or holder(process, self._node, self._owner.get(process.id.pid))
            for process in self._killed.values()
        ]
        gone = {process.pid for process in self._killed}
        spared: List[Dict[str, Any]] = [
            {
                **one.to_json(),
                "why": self._why_not(one) or "is not of our runs; --force ends it",
            }
            for one in self._holders
            if one.pid not in gone and _process(one) is not None
        ]
        report = CleanReport(dry_run, killed, spared)
        if not self._devices:
            return replace(report, why=self._error or "no GPU is listed here", failure=UNREADABLE)
        found = wait_empty(
            self._telemetry, self._node, self._devices, None,
            deadline_s=0.0 if dry_run else EMPTY_DEADLINE_S, pause=time.sleep,
        )  # fmt: skip
        unkillable = not found.empty and bool(self._left)
        names = ", ".join(f"{process.comm} (pid {process.id.pid})" for process in self._left)
        return replace(
            report,
            empty=None if found.failure == UNREADABLE else found.empty,
            after_s=found.after_s,
            failure=UNKILLABLE if unkillable else found.failure,
            why=f"SIGKILL did not end {names}" if unkillable else found.why,
            memory_mib=found.memory_mib,
        )


def _process(one: Holder) -> Optional[Process]:
    """The very process that was described, if it lives."""
    found = processes.find(one.pid)
    return found if found is not None and found.alive and found.id.start == one.start else None


def _visible(environment: Mapping[str, str]) -> List[int]:
    return [int(word) for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.isdigit()]


def _ancestors() -> Set[int]:
    found: Set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        parent = processes.find(pid)
        pid = parent.ppid if parent is not None else 0
    return found
