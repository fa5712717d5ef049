"""Ends a run's processes, and nobody else's: asked first, then frozen, then killed, so that none forks its way out.

The order matters. The job's first process is asked alone: a rank that writes a checkpoint must not lose its data
loaders first. Before the kill all are stopped, since who sees a child die may start another one. Only what
`Proof` proves gets a signal; every scan is judged anew.
"""

from __future__ import annotations

import contextlib
import os
import signal as signals
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Set

from gpuctl.node import processes
from gpuctl.node.clock import boottime
from gpuctl.node.processes import Process, ProcessId
from gpuctl.node.proof import Proof, Spared
from gpuctl.wire.runspec import Stop

Pause = Callable[[float], None]
"""Waits for so many seconds; the supervisor answers requests meanwhile."""
OnKill = Callable[[Process, str, str], None]
"""Called after a signal was sent: to whom, the signal's name, why."""

POLL_S = 0.005
FREEZE_DEADLINE_S = 10.0
GONE_DEADLINE_S = 10.0
CHASE_ROUNDS = 200

GONE = "ZXx"
HELD = "TtD" + GONE  # stopped, or in a place where it can't run any of its own code
ASKED = "asked to stop"
LEFT_BEHIND = "still there after the job's first process had ended"
ASKED_TOO = "still there after the job's first process was asked to stop"
KILLED = "still there after it was asked to stop"


@dataclass(frozen=True)
class Reaped:
    left: List[Process] = field(default_factory=list)  # alive after SIGKILL: in D state, or another user's
    spared: List[Spared] = field(default_factory=list)  # would be ours, but for what breaks the proof


def end(top: Optional[ProcessId], proof: Proof, stop: Stop, *, pause: Pause, on_kill: OnKill) -> Reaped:
    """Ends all that is proven; returns when none of it lives, or when only what SIGKILL can't end is left.

    `top` is whom to ask first, None where it is known to be gone; like all others it needs the proof.
    """
    _ask(top, proof, stop, pause, on_kill)
    return kill(proof, pause=pause, on_kill=on_kill)


def kill(proof: Proof, *, pause: Pause, on_kill: OnKill) -> Reaped:
    """The end of it: what is proven and lives is frozen, then killed."""
    return _kill(_freeze(proof), proof, pause, on_kill)


def end_only(targets: List[Process], stop: Stop, why: str, *, pause: Pause, on_kill: OnKill) -> List[Process]:
    """Ends these very processes, as a person ordered, and nothing below them. Returns those that live on."""
    for number, within_s in ((signal_number(stop.signal), stop.grace_s), (int(signals.SIGKILL), GONE_DEADLINE_S)):
        _signal_all([target for target in targets if processes.alive(target.id)], number, why, on_kill)
        _wait_gone(targets, within_s, pause)
    return [target for target in targets if processes.alive(target.id)]


def _ask(top: Optional[ProcessId], proof: Proof, stop: Stop, pause: Pause, on_kill: OnKill) -> None:
    """The stop signal to the first process, the grace; then to the rest, and the grace again."""
    number = signal_number(stop.signal)
    first = [process for process in proof.ours(processes.scan()) if process.id == top]
    _signal_all(first, number, ASKED, on_kill)
    _wait_gone(first, stop.grace_s, pause)
    ours = proof.ours(processes.scan())
    rest = [process for process in ours if process.id != top]
    _signal_all(rest, number, ASKED_TOO if first else LEFT_BEHIND, on_kill)
    _wait_gone(ours, stop.grace_s, pause)


def _wait_gone(those: List[Process], within_s: float, pause: Pause) -> None:
    deadline = boottime() + within_s
    while any(processes.alive(process.id) for process in those) and boottime() < deadline:
        pause(POLL_S)


def _signal_all(targets: List[Process], number: int, why: str, on_kill: OnKill) -> List[Process]:
    """Those that it reached. All first, the reports after: writing takes time in which those not yet reached act."""
    reached = [process for process in targets if processes.signal(process.id, number)]
    for process in reached:
        if process.state == "T" and number != signals.SIGKILL:
            processes.signal(process.id, signals.SIGCONT)  # a stopped one could not hear it
    for process in reached:
        on_kill(process, signals.Signals(number).name[len("SIG") :], why)
    return reached


def _freeze(proof: Proof) -> Dict[ProcessId, Process]:
    """Stops all that is proven, until two scans in a row find nothing that is new or still runs.

    It can't last for ever: what we may not stop (another user's, by setuid) does not count, and there is a deadline.
    """
    frozen: Dict[ProcessId, Process] = {}
    out_of_reach: Set[ProcessId] = set()
    quiet = 0
    deadline = boottime() + FREEZE_DEADLINE_S
    while quiet < 2 and boottime() < deadline:
        ours = proof.ours(processes.scan())
        _let_go(frozen, ours)
        running = [process for process in ours if process.id not in frozen or process.state not in HELD]
        for process in running:
            if not processes.signal(process.id, signals.SIGSTOP):
                out_of_reach.add(process.id)
            frozen[process.id] = process
        chased = _chase(proof, frozen)
        quiet = 0 if chased or {process.id for process in running} - out_of_reach else quiet + 1
    return frozen


def _let_go(frozen: Dict[ProcessId, Process], ours: List[Process]) -> None:
    """A process whose proof a later scan broke goes on as if nothing had been."""
    still = {process.id for process in ours}
    for process in [process for process in frozen if process not in still]:
        del frozen[process]
        processes.signal(process, signals.SIGCONT)


def _chase(proof: Proof, frozen: Dict[ProcessId, Process]) -> bool:
    """Stops what forks and ends, forks and ends, faster than a scan can see it: as the child of a dead parent it is the
    keeper's each time, and the keeper's children are read in microseconds.

    Answers whether there was any: one that was stopped, or one that was listed and gone before it could be looked at.
    """
    active = False
    for _ in range(CHASE_ROUNDS):
        moved = False
        for root in proof.roots:
            for pid in _children(root):
                child = processes.find(pid)
                if child is None:
                    moved = True
                elif not child.alive and proof.leaves(child.id):
                    _reap(child)
                elif child.alive and child.ppid == root.pid and child.id not in frozen and proof.judge(child):
                    frozen[child.id] = child
                    processes.signal(child.id, signals.SIGSTOP)
                    moved = True
        active |= moved
        if not moved:
            break
    return active


def _reap(child: Process) -> None:
    """Where the keeper is dead, its orphans are this process's own: uncollected, they would pile up by the thousand,
    and the one that forks on be found too late among them."""
    if child.ppid == os.getpid():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.id.pid, os.WNOHANG)


def _children(root: ProcessId) -> List[int]:
    """Its children now; none where that pid is another process's by now, before or after they were read."""
    if not processes.alive(root):
        return []
    found = processes.children(root.pid)
    return found if processes.alive(root) else []


def _kill(frozen: Dict[ProcessId, Process], proof: Proof, pause: Pause, on_kill: OnKill) -> Reaped:
    """SIGKILL to all of them and to what turns up still, until two scans in a row find none that it may yet end."""
    tried: Set[ProcessId] = set()
    killed: Set[ProcessId] = set()
    quiet = 0
    deadline = boottime() + GONE_DEADLINE_S
    while True:
        fresh = [process for process in frozen.values() if process.id not in tried]
        killed.update(process.id for process in _signal_all(fresh, signals.SIGKILL, KILLED, on_kill))
        tried.update(process.id for process in fresh)
        verdict = proof.read(processes.scan())
        frozen.update((process.id, process) for process in verdict.ours)
        chased = _chase(proof, frozen)
        dying = [process for process in verdict.ours if process.id in killed or process.id not in tried]
        quiet = 0 if dying or chased else quiet + 1
        if quiet == 2 or boottime() > deadline:
            return Reaped(verdict.ours, verdict.spared)
        pause(POLL_S)


def signal_number(name: str) -> int:
    """TERM, SIGTERM → 15. Raises `ValueError` for a name that is none."""
    try:
        return int(signals.Signals["SIG" + name.upper().replace("SIG", "", 1)])
    except KeyError:
        raise ValueError(f"{name} is no signal's name") from None
