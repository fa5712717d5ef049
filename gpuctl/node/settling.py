"""The supervisor's answer to an attempt's end: the run ends, or a `relaunching` event says how it goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuctl.node import faults, ledger
from gpuctl.watchdog.policy import decide
from gpuctl.wire.incidents import Action, Incident
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import RunSpec

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Ending, Supervisor


class Settling:
    def __init__(self, supervisor: Supervisor) -> None:
        self._of = supervisor
        self._resumes = False  # whether the last decision was taken with a checkpoint to go on from

    def ends(self, incident: Incident) -> bool:
        """Whether a fatal incident of a living attempt ends it. Where the job only observes, or its policy is to
        alert, it is told what would be done."""
        of = self._of
        if of.spec.observe:
            action = self.decided(incident)
            of.record.write("note", text=f"observed only; it would be ended now, and then: {_in_words(action)}")
            return False
        return of.spec.policy.get(incident.cls) != "alert"

    def settle(self, ending: Ending) -> None:
        """After the clean-up."""
        of = self._of
        of.eyes.close()
        asked = [request for request in (ending.request, of.request) if request is not None]
        request = next((each for each in asked if each.kind == "kill"), asked[-1] if asked else None)
        of.request = None
        exit = ending.exit
        ended_well = exit is not None and exit.exit_code == 0 and ending.incident is None
        if exit is not None and exit.never_begun and request is None:
            relaunch = of.record.begun
            of.record.write("relaunching", sync=True, **relaunch, why="its supervisor died before the attempt began")
        elif request is not None and request.kind == "relaunch":
            self.relaunch_as_asked(request)
        elif request is not None and not ended_well:
            of.finish("killed", f"killed on request{f' of {request.by}' if request.by else ''}")
        elif ending.shown:
            of.finish("succeeded", "a probe: the line that it was to reach was seen")
        elif ending.incident is not None:
            self._act(self.decided(ending.incident), ending.incident)
        elif ended_well:
            of.finish("succeeded", "it exited with code 0")
        else:
            of.finish("lost", "it ended while nobody watched: its exit status can't be known")

    def decided(self, incident: Incident) -> Action:
        of = self._of
        resumes = self._resumes = of.resuming.any()
        known = ledger.experience_of(of)
        return decide(incident, of.spec, of.record.life.params, of.record.attempts, resumes=resumes, ledger=known)

    def _act(self, action: Action, incident: Incident) -> None:
        of = self._of
        if action.kind != "relaunch":
            of.finish(action.state or "failed", action.why, resumes=self._resumes)
            return
        if of.spec.observe:
            of.finish("failed", f"observed only; otherwise: {_in_words(action)}")
            return
        if action.delay_s > 0:
            of.record.write("waiting", why=action.why, seconds=action.delay_s)
            if not of.waited(action.delay_s, "waited to relaunch"):
                return
        facts = {
            "params": action.params,
            "why": action.why,
            "env": action.env,
            "resumes": self._resumes,
            **of.resuming.plan(),
        }
        of.record.write("relaunching", sync=True, **facts)
        faults.reach(of.state_dir, "relaunch-journaled")

    def relaunch_as_asked(self, request: Request) -> None:
        """A person's word: other values, or a whole other spec, and budgets anew."""
        of = self._of
        archived = of.resuming.plan()  # of what was written under the spec so far
        if request.spec is not None:
            of.change_spec(RunSpec.from_json({**request.spec, "run": of.spec.run}))
        elif request.params:
            kept = {name: text for name, text in of.spec.written.items() if name not in request.params}
            of.change_spec(replace(of.spec, written={**kept, **request.written}))
        params = {**(of.spec.params if request.spec is not None else of.record.life.params), **request.params}
        why = f"asked for{f' by {request.by}' if request.by else ''}"
        of.record.write("relaunching", sync=True, params=params, why=why, requested=True, **archived)


def _in_words(action: Action) -> str:
    """What would be done, in one line."""
    if action.kind != "relaunch":
        return f"{action.state or 'failed'}: {action.why}"
    values = " ".join(f"{name}={value}" for name, value in action.params.items())
    return f"relaunched{f' with {values}' if values else ''}: {action.why}"
