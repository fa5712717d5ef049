"""The supervisor: one per run. Holds the run's lock for its life, is the journal's only writer, judges and acts.

    recover ──► begin ──► watch ──► clean up ──► settle ──► begin … or finish
    (journal)   (GPUs     (exit,    (signals,    (policy)
                 leased,   incident, verified
                 empty)    request)  empty)

Each act is journaled before and after, so that a supervisor that dies anywhere is followed by one that goes on there.
"""

from __future__ import annotations

import os
import signal as signals
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence

from gpuctl.node import faults, ledger, limits, program, shell
from gpuctl.node.attempt import Attempt, NotStarted, set_aside
from gpuctl.node.callback import call_back
from gpuctl.node.claims import paths_of
from gpuctl.node.cleaning import Cleaning
from gpuctl.node.clock import boottime
from gpuctl.node.company import Company
from gpuctl.node.folders import RunFolder, StateFolder, write_json
from gpuctl.node.history import Record, exit_of
from gpuctl.node.leases import Leases
from gpuctl.node.machine import Machine, identity
from gpuctl.node.oom_kills import machine_counters
from gpuctl.node.placement import Placement, read_launch
from gpuctl.node.preparing import prepared
from gpuctl.node.processes import ProcessId, children, find, signal
from gpuctl.node.refusal import FAILED
from gpuctl.node.requests import Inbox, refusal_of
from gpuctl.node.resuming import Resuming
from gpuctl.node.settling import Settling
from gpuctl.node.telemetry import Telemetry
from gpuctl.node.watching import Eyes
from gpuctl.node.witness import Witness
from gpuctl.wire import braces
from gpuctl.wire.incidents import Exit, Incident
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import RunSpec

LOOK_S = 1.0
RENEW_S = 3600.0  # a lease that nobody touches for days is swept from a temporary folder


@dataclass
class Ending:
    """Why an attempt is over: it exited, an incident is confirmed, or somebody asked. Several may be true."""

    exit: Optional[Exit] = None
    incident: Optional[Incident] = None
    request: Optional[Request] = None
    shown: bool = False  # a probe has shown what it was made for


class Supervisor:
    def __init__(self, run: RunFolder, secrets: Optional[Dict[str, str]]) -> None:
        self.run = run
        self.spec: RunSpec = run.spec()
        self.node: NodeSpec = read_launch(run).node
        self.state_dir = StateFolder(self.node).path
        self.machine = identity()
        self.record = Record(run.journal)
        self.secrets = secrets
        self.inbox = Inbox(run)
        self.request: Optional[Request] = None
        self.telemetry = Telemetry(self.node, program.argv("sample")) if self.spec.gpus != 0 else None
        self.leases = Leases(self.node, self.machine)
        self.eyes = Eyes(run, self.record, self.telemetry)
        self.cleaning = Cleaning(self)
        self.placement = Placement(self)
        self.resuming = Resuming(self)
        self.settling = Settling(self)
        self.apart: List[ProcessId] = []  # what a callback left running: no part of the job

    # ── the life ────────────────────────────────────────────────────────────────────────────────────────────────

    def live(self) -> None:
        """From wherever the journal stands to the run's end, and on, where somebody asks for a relaunch."""
        attempt = self.resume()
        self.read_requests()
        while True:
            if self.record.life.over and self.record.relaunch is None:
                if not self.revived():
                    break
                attempt = None
            if attempt is None:
                attempt = self.begin()
            if attempt is not None:
                ending = self.watch(attempt)
                self.cleaning.clean_up(attempt, ending.request, ending.exit, ending.incident)
                self.settling.settle(ending)
                attempt = None
        self.close()

    def recover(self) -> str:
        """Brings the journal up to the truth; `ended`, `elsewhere` (another machine's run) or `watching`."""
        life = self.record.life
        if life.seq == 0:
            self.create()
        elif life.machine and self.machine.elsewhere(Machine.from_json(life.machine)):
            return "elsewhere"
        elif life.over:
            self._call_back()
            return "watching" if self.inbox.waiting() or self.record.asked is not None else "ended"
        elif life.machine and not self.machine.same_life(Machine.from_json(life.machine)) and life.state != "queued":
            self.finish("lost", "the machine was restarted while it ran")
            return "watching" if self.inbox.waiting() else "ended"
        else:
            self.record.write("supervisor_started", pid=os.getpid(), machine=self.machine.to_json())
        return "watching"

    def create(self) -> None:
        launch = read_launch(self.run)
        self.record.write(
            "run_created", sync=True, run=self.spec.run, job=self.spec.job, node=self.spec.node, by=self.spec.by,
            machine=self.machine.to_json(), params=self.spec.params, gpus=[gpu["index"] for gpu in launch.gpus],
            state="queued" if launch.queued else "starting", supervisor=os.getpid(),
        )  # fmt: skip

    def resume(self) -> Optional[Attempt]:
        """The attempt that the journal left open; None where the next is to begin."""
        self.request = self._asked()
        if self.record.life.over or self.record.started is None or self.record.relaunch is not None:
            return None
        attempt = Attempt.of_event(self.run, self.record.started)
        self.placement.devices_of(self.record.started)
        if self.secrets is None and self.spec.secrets:
            self.secrets = attempt.secrets(self.spec.secrets)
        self.open_eyes(attempt)
        return attempt

    def begin(self) -> Optional[Attempt]:
        """The next attempt, running and journaled; None where the run ended instead, or is to be looked at anew."""
        request, self.request = self.request, None
        if request is not None and request.kind == "kill":
            self.finish("killed", "killed on request before the attempt began")
            return None
        if request is not None:
            self.settling.relaunch_as_asked(request)
        relaunch = self.record.relaunch or {}
        params = dict(relaunch.get("params", self.record.life.params or self.spec.params))
        missing = [name for name in self.spec.secrets if name not in (self.secrets or {})]
        if missing:
            self.finish(
                "blocked",
                f"the values of {', '.join(missing)} are gone with the processes that had them; "
                f"`gpuctl relaunch {self.spec.run}` from a shell that has them hands them over",
            )
            return None
        # "Empty" last: it holds for the moment that it was verified at.
        if not self.placement.take() or not self.resuming.choose() or not self.cleaning.await_empty():
            return None
        trouble = self.resuming.set_aside(relaunch)
        if trouble is not None:
            self.finish("blocked", trouble)
            return None
        number = self.record.number + 1
        known = shell.values(self.spec, params, number, len(self.placement.devices), shell.free_port())
        try:
            set_aside(self.run, number)
            self.run.attempt(number).create()
            starting = prepared(self, number, known, relaunch.get("env") or {})
        except (NotStarted, OSError) as error:
            self.finish("failed", f"attempt {number} could not be started: {error}")
            return None
        faults.reach(self.state_dir, "attempt-forked")
        attempt = starting.attempt
        assert attempt.keeper is not None and attempt.job is not None
        model, _, total_mib = ledger.model_of(self.placement.devices)
        self.record.write(
            "attempt_started", sync=True, attempt=number, pid=attempt.job.pid, pid_start=attempt.job.start,
            keeper=attempt.keeper.pid, keeper_start=attempt.keeper.start, params=params,
            gpus=[device.index for device in self.placement.devices],
            uuids=[device.uuid for device in self.placement.devices], model=model, total_mib=total_mib,
            gpus_were_empty=self.cleaning.were_empty, requested=bool(relaunch.get("requested")),
            code=shell.code_of(shell.workdir(self.spec, known)), machine=self.machine.to_json(),
            **self.resuming.facts(),
        )  # fmt: skip
        faults.reach(self.state_dir, "attempt-journaled")
        self._let_go(self.record.keepers[:-1])
        self.open_eyes(attempt)
        starting.go()
        faults.reach(self.state_dir, "attempt-told")
        return attempt

    def open_eyes(self, attempt: Attempt) -> None:
        spec = self.spec
        known = shell.values(spec, self.record.life.params or spec.params, attempt.number, 0, 0)
        uuids = [device.uuid for device in self.placement.devices]
        workdir = shell.workdir(spec, known)
        folders = [workdir, *paths_of(spec, known)]
        witness = Witness(attempt, folders, machines=machine_counters(self.node), shared=spec.share)
        roots = [process.pid for process in (attempt.keeper, attempt.job) if process is not None]
        company = Company(spec.run, roots, idle_mib=self.node.idle_mib)
        self.eyes.open(attempt, spec, workdir, self.log_globs(known), uuids, witness=witness, company=company)
        self.cleaning.open(attempt)

    def log_globs(self, known: Mapping[str, Any]) -> List[str]:
        return [braces.render(pattern, known, quote=False) for pattern in self.spec.watch.logs]

    def watch(self, attempt: Attempt) -> Ending:
        """Until it exits, an incident is confirmed, its time is up, or somebody asks for its end."""
        if self._ending_is_known():
            return self._ending_from_journal(attempt)
        started = (self.record.started or {}).get("mono_s", boottime())
        told: List[Incident] = []  # a limit that was passed stays passed
        renew_at = boottime() + RENEW_S
        while True:
            incidents = self.eyes.look(LOOK_S)
            if boottime() >= renew_at:
                renew_at = boottime() + RENEW_S
                self.leases.renew(self.spec.run)
            exit = attempt.exit_soon(time.sleep, LOOK_S)
            if exit is not None:
                faults.reach(self.state_dir, "exit-seen")
                return self._exited(attempt, exit)
            self.read_requests()
            if self.request is not None:
                return Ending(request=self.request)
            if self.shown:
                return Ending(shown=True)
            if self.spec.timeout_s is not None and boottime() - started >= self.spec.timeout_s:
                incidents.append(limits.timed_out(self.spec.timeout_s))
            if self.record.journal.short_of_room or self.eyes.no_room:
                incidents.append(limits.disk_full(self.run.path))
            for incident in [each for each in incidents if each not in told]:
                told.append(incident)
                self.record.write("incident", **incident.to_event())
                if incident.fatal and self.settling.ends(incident):
                    self.eyes.ends()
                    return Ending(incident=incident)

    def _exited(self, attempt: Attempt, exit: Exit) -> Ending:
        exit = self.cleaning.with_left_behind(attempt, exit)
        if self.spec.setup.strip() and not os.path.exists(os.path.join(attempt.folder.path, shell.SETUP_DONE)):
            exit = replace(exit, setup_failed=exit.exit_code not in (None, 0))
        incident = self.eyes.verdict(exit)
        if self.shown:
            return Ending(exit=exit, shown=True)
        if incident is not None:
            self.record.write("incident", **incident.to_event())
        return Ending(exit=exit, incident=incident)

    def _ending_is_known(self) -> bool:
        """Whether the last supervisor had found out that this attempt is over, or was ending it."""
        record = self.record
        if record.exited is not None or record.asked is not None or record.life.state == "cleaning":
            return True
        incident = record.attempts[-1].incident
        return incident is not None and not self.spec.observe and self.settling.ends(incident)

    def _ending_from_journal(self, attempt: Attempt) -> Ending:
        """What the last supervisor had found out before it died."""
        exited, request = self.record.exited, self._asked()
        exit = None
        if exited is not None:
            exit = exit_of(exited)
        if self.shown and request is None:
            return Ending(exit, shown=True)
        incident = self.record.attempts[-1].incident
        if exit is None and incident is None and request is None:
            exit = attempt.exit()
        if incident is None and exit is not None and request is None:
            incident = self.eyes.verdict(exit)
        return Ending(exit, incident, request)

    @property
    def shown(self) -> bool:
        return self.spec.probe and self.eyes.done

    def _asked(self) -> Optional[Request]:
        """The request that was accepted and is not carried out yet."""
        asked = self.record.asked
        return Request.from_json({**asked, "id": asked["request"]}) if asked else None

    # ── what to do then ─────────────────────────────────────────────────────────────────────────────────────────

    def finish(self, state: str, why: str, **facts: Any) -> None:
        """The run's last event. Its leases end with it."""
        faults.reach(self.state_dir, "finish")
        self.leases.leave(self.spec.run)
        self.record.write("run_finished", sync=True, state=state, why=why, **facts)
        self.leases.release(self.spec.run)
        self._let_go(self.record.keepers)
        self._call_back()

    def _call_back(self) -> None:
        """Tells whom the job names, once for each ending. Of this run nothing lives now, so what is our child by then
        was started by the callback."""
        if self.record.called_back:
            return
        call_back(self.spec, self.node, self.record)
        left = [process.id for process in map(find, children(os.getpid())) if process is not None]
        self.apart += [process for process in left if process not in self.record.keepers]

    def change_spec(self, spec: RunSpec) -> None:
        """Another job file for the next attempts: other GPUs too, perhaps."""
        self.spec, before = spec, self.spec
        write_json(self.run.spec_file, spec.to_json())
        if spec.gpus == before.gpus:
            return
        self.placement.forget()
        if spec.gpus == 0 and self.telemetry is not None:
            self.leases.release(spec.run)
            self.telemetry.close()
            self.telemetry = None
        elif spec.gpus != 0 and self.telemetry is None:
            self.telemetry = Telemetry(self.node, program.argv("sample"))
        self.eyes.telemetry = self.telemetry

    def _let_go(self, keepers: Sequence[ProcessId]) -> None:
        """Old keepers may end: what follows is journaled. (They ignore it while they have children.)"""
        for keeper in keepers:
            signal(keeper, signals.SIGTERM)

    def revived(self) -> bool:
        """Whether somebody asked for a relaunch of the run that has ended."""
        self.read_requests()
        request, self.request = self.request, None
        if request is None or request.kind != "relaunch":
            return False
        self.settling.relaunch_as_asked(request)
        return True

    # ── requests and waiting ────────────────────────────────────────────────────────────────────────────────────

    def read_requests(self) -> None:
        """Answers what lies in the inbox. An accepted request stands in `request` until it is carried out."""
        for request in self.inbox.waiting():
            if request.id not in self.record.answered:
                refusal = refusal_of(self.record.life, request.kind)
                if refusal is None and request.kind != "kill":
                    refusal = self._not_now(request)
                fields = {**request.to_json(), **(refusal or {})}
                fields.pop("id")
                self.record.write("request", sync=True, request=request.id, accepted=refusal is None, **fields)
                if refusal is None:
                    self.request = request
            self.inbox.done(request)

    def _not_now(self, request: Request) -> Optional[Dict[str, Any]]:
        """Why a relaunch can't be carried out as things are."""
        if self.request is not None:
            return {"code": FAILED, "why": f"another request is being carried out: {self.request.kind}"}
        wanted = (request.spec or {}).get("secrets", self.spec.secrets)
        missing = [name for name in wanted if name not in (self.secrets or {})]  # type: ignore[attr-defined]
        if missing and not self.record.life.over:
            hint = f"`gpuctl kill {self.spec.run}` first: a relaunch from a shell that has them then hands them over"
            return {"code": FAILED, "why": f"its supervisor does not have {', '.join(missing)}", "hint": hint}
        return None

    def pause(self, seconds: float) -> None:
        """Waits, while logs are read and requests are answered."""
        end = boottime() + seconds
        while True:
            self.eyes.look(max(0.0, end - boottime()))
            self.read_requests()
            if boottime() >= end:
                return

    def waited(self, seconds: float, doing: str) -> bool:
        """Whether nobody asked for anything meanwhile. What is asked for is done: the run ends, or relaunches."""
        end = boottime() + seconds
        while True:
            request, self.request = self.request, None
            if request is not None:
                self._turn_to(request, doing)
                return False
            if boottime() >= end:
                return True
            self.eyes.look(max(0.0, min(LOOK_S, end - boottime())))
            self.read_requests()

    def _turn_to(self, request: Request, doing: str) -> None:
        if request.kind == "kill":
            self.finish("killed", f"killed on request{f' of {request.by}' if request.by else ''} while it {doing}")
        else:
            self.settling.relaunch_as_asked(request)

    def close(self) -> None:
        if self.telemetry is not None:
            self.telemetry.close()
        self.record.journal.close()
