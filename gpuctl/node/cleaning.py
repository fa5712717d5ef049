"""The supervisor's cleaning: ends what is provably the attempt's, then waits for the promise "empty" to come true."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

from gpuctl.node import faults, ledger, sharing, stacks
from gpuctl.node.attempt import Attempt
from gpuctl.node.clock import boottime
from gpuctl.node.emptiness import Emptiness, wait_empty
from gpuctl.node.processes import Process, ProcessId, find, scan
from gpuctl.node.proof import Proof
from gpuctl.node.reaper import OnKill, end
from gpuctl.wire.incidents import Exit, Incident
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import Stop

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor

EMPTY_DEADLINE_S = 10.0  # a killed process frees 100 GiB in 0.2 s; a driver that takes longer is in trouble
BUSY_LOOK_S = (1.0, 2.0, 5.0, 10.0, 15.0)


class Cleaning:
    def __init__(self, supervisor: Supervisor) -> None:
        self._of = supervisor
        self._proof: Optional[Proof] = None
        self._spared: Set[Tuple[object, object]] = set()
        self.were_empty = True  # the GPUs, when the current attempt began

    def open(self, attempt: Attempt) -> None:
        """Begins the proof for an attempt; what it sees from now on counts."""
        self._proof = self._new_proof()
        if attempt.job is not None:
            self._proof.remember(attempt.job)

    def _new_proof(self) -> Proof:
        of = self._of
        me = find(os.getpid())
        assert me is not None
        return Proof(of.spec.run, of.state_dir, [*of.record.keepers, me.id], self._never(me.id))

    def _never(self, me: ProcessId) -> List[ProcessId]:
        sampler = self._of.telemetry.pid if self._of.telemetry is not None else None
        found = find(sampler) if sampler is not None else None
        return [me, *self._of.apart] if found is None else [me, found.id, *self._of.apart]

    def clean_up(
        self, attempt: Attempt, request: Optional[Request], exit: Optional[Exit], incident: Optional[Incident] = None
    ) -> None:
        """Ends what lives of the attempt, journals its exit, and verifies its GPUs. Safe to do twice.

        Where it lives and is stuck, as the incident says, it is written down first where its processes stand.
        """
        of = self._of
        if exit is not None:
            self._note_exit(exit)
        of.record.write("cleaning", gpus=[device.index for device in of.placement.devices])
        grace = request.grace_s if request is not None and request.grace_s is not None else of.spec.stop.grace_s
        if exit is None and request is None and incident is not None and incident.cls in stacks.ABORTS:
            self._keep_stacks(attempt, abort=stacks.ABORTS[incident.cls])
        if request is not None or not of.spec.observe:
            self._end(attempt, Stop(of.spec.stop.signal, grace), "of this run, which is being ended")
        if exit is None:
            self._note_exit(attempt.wait_exit(of.pause))
        faults.reach(of.state_dir, "cleaned")
        if of.placement.devices:
            self._report(self._wait_empty(1.0 if of.spec.observe else EMPTY_DEADLINE_S))

    def await_empty(self) -> bool:
        """Before an attempt: its GPUs hold nothing; where it shares them, nothing of ours, and leave it room. Waits as
        `on_busy` says; False: the run has ended instead, or is to begin anew with other values."""
        of = self._of
        self.were_empty = True
        if not of.placement.devices:
            return True
        if self._proof is None:
            self._proof = self._new_proof()
        end_at = boottime() + of.spec.on_busy_wait_s
        looks = 0
        while True:
            found = self._wait_empty(EMPTY_DEADLINE_S if looks == 0 and of.record.number else 1.0)
            why = sharing.lack_of_room(of) if found.empty else found.why
            if why is None:
                self.were_empty = not of.spec.share or self._nothing_there()
                if looks:
                    self._report(found)
                return True
            if looks == 0:
                if not found.empty:
                    self._report(found)
                of.record.write("waiting", why=why, seconds=of.spec.on_busy_wait_s)
            if boottime() >= end_at:
                trouble = "its GPUs have no room for it" if found.empty else "its GPUs can't be emptied"
                of.finish("blocked", f"{trouble}: {why}")
                return False
            pause = BUSY_LOOK_S[min(looks, len(BUSY_LOOK_S) - 1)]
            if not of.waited(min(pause, max(0.1, end_at - boottime())), "waited for its GPUs"):
                return False
            looks += 1

    def with_left_behind(self, attempt: Attempt, exit: Exit) -> Exit:
        """The exit, marked where the first process ended well but descendants live on and hold GPU memory."""
        assert self._proof is not None
        if exit.exit_code != 0 or not self._of.placement.devices:
            return exit
        living = self._proof.ours(scan())
        if not living or self._nothing_there(of_pids=[process.id.pid for process in living]):
            return exit
        return Exit(exit.exit_code, exit.signal, exit.duration_s, left_behind=True)

    def end_quietly(self, attempt: Attempt) -> None:
        """Ends the attempt where nothing can be journaled any more."""
        if self._proof is None:
            self.open(attempt)
        assert self._proof is not None
        end(attempt.top(self._of.spec.stop.signal), self._proof, self._of.spec.stop, pause=time.sleep, on_kill=_ignore)

    def _keep_stacks(self, attempt: Attempt, *, abort: bool) -> None:
        of = self._of
        assert self._proof is not None
        ours = self._proof.ours(scan())
        try:
            kept = stacks.keep(attempt.folder.path, ours, abort=abort, pause=of.pause, on_kill=self._killing(""))
        except OSError as error:  # a disk that has no room for them, say: the attempt is to be ended all the same
            of.record.write("note", text=f"its processes' stacks could not be kept: {error}")
            return
        of.record.write("stacks", file=stacks.FILE, processes=kept.of, dumped=kept.dumped, aborted=kept.aborted)

    def _killing(self, why: str) -> OnKill:
        def on_kill(process: Process, signal: str, reason: str) -> None:
            self._of.record.write("killed", pid=process.id.pid, name=process.comm, signal=signal, why=reason or why)

        return on_kill

    def _end(self, attempt: Attempt, stop: Stop, why: str) -> None:
        of = self._of
        assert self._proof is not None
        self._proof.never = set(self._never(ProcessId(*_me())))
        reaped = end(attempt.top(stop.signal), self._proof, stop, pause=of.pause, on_kill=self._killing(why))
        for process, reason in reaped.spared:
            self._spare(process.id.pid, process.comm, reason)

    def _wait_empty(self, deadline_s: float) -> Emptiness:
        of = self._of
        assert of.telemetry is not None
        return wait_empty(
            of.telemetry, of.node, of.placement.devices, self._proof, deadline_s=deadline_s, pause=of.pause,
            share=of.spec.share,
        )  # fmt: skip

    def _report(self, found: Emptiness) -> None:
        of = self._of
        for spared in found.spared:
            self._spare(spared["pid"], spared["name"], spared["why"])
        if found.empty:
            indices = [device.index for device in of.placement.devices]
            ghost = {"ghost_utilisation": found.ghost_utilisation} if found.ghost_utilisation else {}
            of.record.write("gpus_empty", after_s=found.after_s, gpus=indices, **ghost)
        else:
            of.record.write("not_empty", failure=found.failure, why=found.why)

    def _spare(self, pid: object, name: object, why: object) -> None:
        """Journals once who was not touched, and why."""
        if (pid, why) not in self._spared:
            self._spared.add((pid, why))
            self._of.record.write("spared", pid=pid, name=name, why=why)

    def _nothing_there(self, of_pids: Optional[List[int]] = None) -> bool:
        """Whether the run's GPUs hold no more than they may; with pids: none of theirs, as far as NVML says."""
        of = self._of
        assert of.telemetry is not None
        uuids = {device.uuid for device in of.placement.devices}
        devices = [device for device in of.telemetry.sample().devices if device.uuid in uuids]
        used = {device.uuid: device.memory_used_mib for device in devices}
        if of_pids is None:  # what gives no reading is not known to hold nothing
            return all(mib is not None and mib <= of.node.idle_mib for mib in map(used.get, uuids))
        full = [device for device in devices if (device.memory_used_mib or 0) > of.node.idle_mib]
        named = {process.pid for device in full for process in device.processes or []}
        unread = [device for device in devices if device.memory_used_mib is None]
        theirs = {process.pid for device in full + unread for process in device.processes or []}.intersection(of_pids)
        return not theirs and (not full or (bool(named) and not _dead(named)))

    def _note_exit(self, exit: Exit) -> None:
        of = self._of
        if of.record.exited is None:
            fields: Dict[str, Any] = {
                "exit_code": exit.exit_code, "signal": exit.signal, "duration_s": exit.duration_s,
                "peak_mib": {str(index): mib for index, mib in sorted(of.eyes.peak_mib.items())},
            }  # fmt: skip
            ledger.enter(of, exit)  # first: what is journaled is not done again after a crash
            fields.update((name, True) for name in ("never_begun", "left_behind") if getattr(exit, name))
            of.record.write("attempt_exited", sync=True, **fields)
            faults.reach(of.state_dir, "exit-journaled")


def _me() -> ProcessId:
    found = find(os.getpid())
    assert found is not None
    return found.id


def _dead(pids: object) -> bool:
    """Whether NVML names a pid that is gone: then the memory is held by somebody who inherited it."""
    return any(find(pid) is None for pid in pids)  # type: ignore[attr-defined]


def _ignore(*_: object) -> None:
    """Where nothing can be written."""
