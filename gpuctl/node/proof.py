"""Which processes are provably a run's. Whatever this module does not prove gets no signal, from anyone, ever.

Two proofs. Descent: it descends from the run's keeper, a child subreaper, so that orphans of orphans do too, or from a
process that is itself proven. The marker: `GPUCTL_RUN` in the environment that it was started with, in our PID
namespace. What was once proven stays proven when its chain of parents ends or its environment is wiped.

Both are broken where somebody else may have moved in: a terminal multiplexer's server, and what came out of one (the
job started it, but a person may have a shell there); a process of gpuctl's own or with another run's marker (the job
launched a run). What is broken stays broken, below it too: out of a pane, a double fork lands at the keeper again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from gpuctl.node.processes import Process, ProcessId, environ, namespace
from gpuctl.node.program import FLAGS

MARKER = "GPUCTL_RUN"
ATTEMPT_DIR = "GPUCTL_DIR"

MULTIPLEXERS = frozenset({"tmux: server", "dtach", "abduco", "zellij", "shpool"})
"""By the kernel's name for them. GNU screen's server differs from its client only in argv[0]: SCREEN."""
INSIDE_ONE = ("TMUX", "STY", "ABDUCO_SESSION", "ZELLIJ_SESSION_NAME", "SHPOOL_SESSION_NAME")
"""Variables that a multiplexer gives to what it starts."""
OWN_VERBS = frozenset({"supervise", "keep", "sample", "view"})


class _Claim(NamedTuple):
    """Whether a process is claimed for the run, and what breaks that claim, for it and for what is below it."""

    made: bool
    broken: Optional[str] = None


_NOBODYS = _Claim(False)
_OURS = _Claim(True)
_APART = _Claim(False, "is gpuctl's own, or descends from that")
_MULTIPLEXER = "is a terminal multiplexer's server, in which a person may have a shell"
_BELOW = "descends from "


class Spared(NamedTuple):
    process: Process
    why: str


class Verdict(NamedTuple):
    ours: List[Process]  # alive and proven
    spared: List[Spared]  # alive and ours but for what breaks the proof


@dataclass(frozen=True)
class _Seen:
    """What a process's environment said. Kept while its name and argv stay: another program has another environment."""

    comm: str
    argv: Tuple[str, ...]
    environment: Optional[Mapping[str, str]]


def own(process: Process) -> bool:
    """Whether it is gpuctl itself: keeper, supervisor, sampler or view, of whichever run (`node/program.py`)."""
    argv = process.argv
    return len(argv) > 3 and argv[1] in ("-I", FLAGS) and argv[2].endswith(".pyz") and argv[3] in OWN_VERBS


def keeper(process: Process) -> bool:
    return own(process) and process.argv[3] == "keep"


def multiplexer(process: Process) -> bool:
    first = os.path.basename(process.argv[0]) if process.argv else ""
    return process.comm in MULTIPLEXERS or first == "SCREEN"


def marked(environment: Mapping[str, str], state_dir: str) -> Optional[str]:
    """The run of this state folder that the marker names. Another folder's run of the same name is not meant, nor is
    what a callback started, which knows the run's name but is no part of the job."""
    run = environment.get(MARKER)
    folder = environment.get(ATTEMPT_DIR)
    if not run or folder is None or not _below(folder, os.path.join(state_dir, "runs", run)):
        return None
    return run


def lineage(processes: Iterable[Process]) -> Dict[ProcessId, List[Process]]:
    """Children by parent. A child that is older than its parent is none: that pid was somebody else's before."""
    listed = list(processes)
    by_pid = {process.id.pid: process for process in listed}
    found: Dict[ProcessId, List[Process]] = {}
    for process in listed:
        parent = by_pid.get(process.ppid)
        if parent is not None and parent.id.start <= process.id.start:
            found.setdefault(parent.id, []).append(process)
    return found


class Proof:
    """For one run. Keep one as long as the attempt lives: what it has seen counts.

    `roots`: the keeper; a supervisor that is a subreaper, where the keeper is dead. They are not ours themselves, nor
    is anything in `never` (the sampler, this very process), nor what descends from that.
    """

    def __init__(self, run: str, state_dir: str, roots: Sequence[ProcessId], never: Collection[ProcessId] = ()) -> None:
        self.run = run
        self.state_dir = state_dir
        self.roots = list(roots)
        self.never = set(never)
        self._journaled: Set[ProcessId] = set()
        self._proven: Set[ProcessId] = set()
        self._broken: Dict[ProcessId, str] = {}
        self._seen: Dict[ProcessId, _Seen] = {}
        self._namespace = namespace(os.getpid())

    def remember(self, process: ProcessId) -> None:
        """The attempt's first process, as it was journaled: that record is its proof."""
        self._journaled.add(process)
        self._proven.add(process)

    def leaves(self, zombie: ProcessId) -> bool:
        """Whether nobody waits for the status of this dead process: it is neither a root, nor what is never ours, nor
        an attempt's first process."""
        return zombie not in {*self.roots, *self.never, *self._journaled}

    def ours(self, processes: Iterable[Process]) -> List[Process]:
        return self.read(processes).ours

    def spared(self, processes: Iterable[Process]) -> List[Spared]:
        return self.read(processes).spared

    def read(self, processes: Iterable[Process]) -> Verdict:
        """Judges a scan, which must be a whole one: what it lacks is forgotten. From the top down, since what breaks
        the proof of one breaks it for all below."""
        listed = list(processes)
        self._forget_all_but({process.id for process in listed})
        below = lineage(listed)
        inherited = self._inherited(listed)
        verdict = Verdict([], [])
        has_parent = {child.id for family in below.values() for child in family}
        waiting = [(process, _NOBODYS) for process in listed if process.id not in has_parent]
        while waiting:
            process, above = waiting.pop()
            claim = self._claim(process, above, inherited)
            self._note(process, claim, verdict)
            waiting += [(child, self._passed_on(process, claim)) for child in below.get(process.id, [])]
        return verdict

    def judge(self, child: Process) -> bool:
        """Whether a process that a root was just seen to have as its child is ours: without a scan, which is too slow
        for one that forks and ends, forks and ends."""
        return self._claim(child, _OURS, self._inherited([])) == _OURS

    def _claim(self, process: Process, above: _Claim, inherited: Set[Tuple[str, str]]) -> _Claim:
        if process.id in self.roots or process.id in self.never:
            return _APART
        if own(process) and process.id not in self._journaled:  # the keeper's fork looks like one until its exec
            return _Claim(above.made, above.broken or "is gpuctl's own") if above.made else _APART
        if above == _APART:
            if process.id not in self._proven:
                return _APART
            above = _NOBODYS
        if process.id in self._broken:
            return _Claim(True, self._broken[process.id])
        if above.made or process.id in self._proven or self._has_marker(process):
            return _Claim(True, above.broken or self._breaks(process, inherited))
        return _Claim(False, above.broken or (_MULTIPLEXER if multiplexer(process) else None))

    def _passed_on(self, process: Process, claim: _Claim) -> _Claim:
        """What its children have from it."""
        if process.id in self.roots:
            return _OURS
        if claim == _APART:
            return (
                _NOBODYS if keeper(process) else _APART
            )  # an older attempt's keeper: its children speak for themselves
        if claim.broken is None or claim.broken.startswith(_BELOW):
            return claim
        return _Claim(claim.made, f"{_BELOW}{process.comm} ({process.id.pid}), which {claim.broken}")

    def _note(self, process: Process, claim: _Claim, verdict: Verdict) -> None:
        if not claim.made:
            return
        if claim.broken is None:
            self._proven.add(process.id)
        else:
            self._proven.discard(process.id)
            if not own(process):
                self._broken[process.id] = claim.broken
        if process.alive and claim.broken is None:
            verdict.ours.append(process)
        elif process.alive:
            verdict.spared.append(Spared(process, str(claim.broken)))

    def _forget_all_but(self, present: Set[ProcessId]) -> None:
        self._proven &= present
        self._broken = {process: why for process, why in self._broken.items() if process in present}
        self._seen = {process: seen for process, seen in self._seen.items() if process in present}

    def _breaks(self, process: Process, inherited: Set[Tuple[str, str]]) -> Optional[str]:
        """Why it is not ours although it descends from what is, or bears our marker. None: it is."""
        if multiplexer(process):
            return _MULTIPLEXER
        environment = self._environment(process) or {}
        if environment.get(MARKER, self.run) != self.run:
            return f"belongs to the run {environment[MARKER]}"
        for name in INSIDE_ONE:
            if name in environment and (name, environment[name]) not in inherited:
                return f"was started inside a terminal multiplexer ({name} is set), perhaps by a person"
        return None

    def _has_marker(self, process: Process) -> bool:
        environment = self._environment(process)
        if environment is None or marked(environment, self.state_dir) != self.run:
            return False
        return self._namespace is not None and namespace(process.id.pid) == self._namespace

    def _inherited(self, processes: Iterable[Process]) -> Set[Tuple[str, str]]:
        """A run that was launched from inside a multiplexer may have inherited its variables: they say nothing then."""
        environments = [self._environment(process) or {} for process in processes if process.id in self.roots]
        return {(name, found[name]) for found in environments for name in INSIDE_ONE if name in found}

    def _environment(self, process: Process) -> Optional[Mapping[str, str]]:
        seen = self._seen.get(process.id)
        if seen is None or (seen.comm, seen.argv) != (process.comm, process.argv):
            seen = _Seen(process.comm, process.argv, environ(process.id.pid))
            if seen.environment:  # none yet in the middle of an exec; or closed to us for the moment
                self._seen[process.id] = seen
        return seen.environment


def _below(path: str, folder: str) -> bool:
    return os.path.normpath(path).startswith(os.path.normpath(folder) + os.sep)
