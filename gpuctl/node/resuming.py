"""The supervisor's way from one attempt to the next: which checkpoint it goes on from, and what is set aside before."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from gpuctl.node import deadline, faults, outputs, shell
from gpuctl.node.checkpoints import SETTLED_S, Checkpoint, checkpoints
from gpuctl.node.claims import claim_of, meet, others
from gpuctl.node.folders import StateFolder
from gpuctl.node.journal import outline
from gpuctl.node.refusal import UNSAFE, Refusal
from gpuctl.watchdog.budgets import spoiled
from gpuctl.wire import braces
from gpuctl.wire.runspec import RunSpec, Scalar

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor

ANSWER_S = 30.0  # that a disk has to tell of checkpoints


class Resuming:
    def __init__(self, supervisor: Supervisor) -> None:
        self._of = supervisor
        self._state = StateFolder(supervisor.node)
        self.chosen: Optional[Checkpoint] = None  # what the attempt that begins goes on from

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────

    def candidates(self) -> List[Checkpoint]:
        """What the next attempt could go on from, the best first: written by an attempt of this run (or before the
        run, if it was launched with --resume), and not given up. Raises TimeoutError where their disk is silent."""
        of = self._of
        if of.spec.resume is None:
            return []
        ours = spans(outline(of.run.journal), of.spec.stop.grace_s + SETTLED_S)
        if of.spec.resume_older:
            ours.insert(0, (0.0, ours[0][0] if ours else time.time()))
        workdir, patterns = shell.workdir(of.spec, self._known()), self._patterns()
        found = [
            each
            for each in deadline.answered(lambda: checkpoints(workdir, patterns), ANSWER_S)
            if any(first <= each.written <= last for first, last in ours)
        ]
        anew = bool((of.record.relaunch or {}).get("requested"))
        given_up = spoiled(of.record.attempts, anew=anew)
        return [each for each in found if each.key not in given_up]

    def choose(self) -> bool:
        """Settles on one for the attempt that begins. False: somebody asked for something else meanwhile, or the run
        has ended."""
        try:
            return self._choose()
        except TimeoutError as error:
            why = f"the disk of its checkpoints is silent ({error}): once it answers, `gpuctl relaunch` goes on"
            self._of.finish("blocked", why)
            return False

    def any(self) -> bool:
        """Whether there is one to go on from. Where their disk is silent, no attempt will begin anyway."""
        try:
            return bool(self.candidates())
        except TimeoutError:
            return False

    def _choose(self) -> bool:
        of = self._of
        self.chosen = None
        first = self.candidates()
        if not first:
            return True
        young_s = SETTLED_S - (time.time() - first[0].written)
        if young_s > 0:
            if not of.waited(min(young_s, SETTLED_S), "waited for its checkpoint to be whole"):
                return False
            first = [each for each in self.candidates() if each in first]
        self.chosen = first[0] if first else None
        return True

    def text(self, known: Mapping[str, Scalar]) -> Optional[str]:
        """What to append to the command."""
        if self.chosen is None or self._of.spec.resume is None:
            return None
        return braces.render(self._of.spec.resume.append, {**known, "latest": self.chosen.path}, quote=True)

    def facts(self) -> Dict[str, Any]:
        """What `attempt_started` says of it."""
        if self.chosen is None:
            return {}
        return {"resumed_from": self.chosen.path, "resumed_written": self.chosen.written}

    # ── outputs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def plan(self) -> Dict[str, Any]:
        """What `relaunching` says of the outputs that the attempt before it leaves; nothing is renamed yet."""
        of = self._of
        if of.spec.outputs.on_relaunch != "archive" or not of.record.number or of.spec.observe:
            return {}
        plan = outputs.plan(of.spec, self._known(), of.record.number, self._state)
        for path, why in plan.stays.items():
            of.record.write("note", text=f"{path} is not set aside: {why}")
        if not plan.moves:
            return {}
        return {"archived": list(plan.moves.values()), "archived_from": list(plan.moves)}

    def set_aside(self, relaunch: Mapping[str, Any]) -> Optional[str]:
        """Does what the `relaunching` event says. Answers why it can't be done."""
        of = self._of
        moves = dict(zip(relaunch.get("archived_from") or [], relaunch.get("archived") or []))
        if not moves:
            return None
        faults.reach(of.state_dir, "archiving")
        try:
            workdir, patterns = shell.workdir(of.spec, self._known()), self._patterns()
            outputs.carry_out(moves, deadline.answered(lambda: outputs.spared(workdir, patterns), ANSWER_S))
        except OSError as error:
            return f"its outputs can't be set aside: {error}"
        return None

    def _patterns(self) -> Set[str]:
        """`resume.when`, as each attempt's values fill it in."""
        of = self._of
        if of.spec.resume is None:
            return set()
        past = [(record.attempt, record.params) for record in of.record.attempts] or [(1, of.spec.params)]
        return {
            braces.render(of.spec.resume.when, {**self._known(), **params, "attempt": number}, quote=False)
            for number, params in past
        }

    def _known(self) -> Dict[str, Scalar]:
        """The values of the last attempt: what it wrote is named by them."""
        of = self._of
        started = of.record.started or {}
        params = {**of.spec.params, **(started.get("params") or {})}
        return shell.values(of.spec, params, max(1, of.record.number), len(started.get("gpus") or []), 0)


def check(spec: RunSpec, known: Mapping[str, Scalar], state: StateFolder) -> None:
    """Before a launch. Raises Refusal where a live run's checkpoints could be taken for this one's, or the reverse."""
    mine = claim_of(spec, known).checkpoints
    for other in others(spec, state) if mine is not None else ():
        if mine is not None and other.checkpoints is not None and meet(mine, other.checkpoints):
            raise Refusal(
                UNSAFE, f"resume.when: {other.run}, which is live, has its checkpoints there too: {other.checkpoints}",
                "one would go on from the other's: write them to another folder (`{run}` in its name makes it the "
                "run's own), or wait for that run's end",
            )  # fmt: skip


def spans(events: Iterable[Mapping[str, Any]], grace_s: float) -> List[Tuple[float, float]]:
    """When the run's attempts lived, in wall time: what was written at other times is not theirs. Whole seconds at the
    beginning, since file systems round down; what an attempt left behind may write until `grace_s` after its exit."""
    found: List[Tuple[float, float]] = []
    open_since: Optional[float] = None
    for event in events:
        if event["type"] in ("attempt_started", "attempt_exited", "run_finished") and open_since is not None:
            found.append((open_since, _wall(event["time"]) + grace_s))
            open_since = None
        if event["type"] == "attempt_started":
            open_since = float(int(_wall(event["time"])))
    return found if open_since is None else [*found, (open_since, float("inf"))]


def _wall(moment: str) -> float:
    """A journal's time as seconds since the epoch, as files have it."""
    return datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
