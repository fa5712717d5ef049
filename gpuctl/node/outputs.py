"""What a job wrote is set aside before the next attempt: renamed beside itself (`outputs.attempt-1`), never deleted.

First the journal says what goes where (`relaunching`: `archived`), then it is renamed; doing it twice does no harm.
What `resume.when` matches stays. Links are renamed as links, never followed; what another live run names (outputs,
workdir, logs, checkpoints) is left alone, and a launch that would clash so is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Collection, Dict, Mapping, Optional, Set, Tuple

from gpuctl.node import shell
from gpuctl.node.checkpoints import matching
from gpuctl.node.claims import Known, claim_of, others, paths_of, true_path, within
from gpuctl.node.folders import StateFolder, expand, home
from gpuctl.node.refusal import BAD_USAGE, UNSAFE, Refusal
from gpuctl.wire import braces
from gpuctl.wire.runspec import RunSpec


@dataclass(frozen=True)
class Plan:
    """Where each output goes, and why some stay."""

    moves: Dict[str, str]  # source → target
    stays: Dict[str, str]  # path → why


def check(spec: RunSpec, known: Known, state: StateFolder) -> None:
    """Before a launch. Raises Refusal: what can't be set aside at all, or belongs to another live run as well."""
    workdir = shell.workdir(spec, known)
    if spec.outputs.on_relaunch == "archive":
        for path in paths_of(spec, known):
            for kept, what in ((workdir, "the workdir"), (home(), "the home folder"), (state.path, "gpuctl's state")):
                if within(os.path.realpath(kept), path):
                    raise Refusal(
                        BAD_USAGE, f"outputs.paths: {path} holds {what}, which can't be renamed before a relaunch",
                        "name what is in it, or say `on_relaunch: keep`",
                    )  # fmt: skip
            if _led_away(path, spec, known):
                raise Refusal(
                    BAD_USAGE, f"outputs.paths: a link leads {path} out of {workdir}",
                    "name the folder itself, or say `on_relaunch: keep`",
                )  # fmt: skip
    clash = clash_of(spec, known, state)
    if clash is not None:
        path, owner, other = clash
        raise Refusal(
            UNSAFE, f"outputs.paths of {owner}: {path} belongs to {other} as well, and would be renamed under it",
            "one of them is live: name another path (`{run}` in it makes it the run's own), or wait for its end",
        )  # fmt: skip


def clash_of(spec: RunSpec, known: Known, state: StateFolder) -> Optional[Tuple[str, str, str]]:
    """A path that this run or a live one would rename, which of them, and which loses what it names."""
    mine = claim_of(spec, known)
    for other in others(spec, state):
        for one, loser in ((mine, other), (other, mine)):
            lost = next((path for path in one.outputs if loser.would_lose(path)), None) if one.archives else None
            if lost is not None:
                return lost, one.run, loser.run
    return None


def plan(spec: RunSpec, known: Known, attempt: int, state: StateFolder) -> Plan:
    """What is to be set aside after this attempt, whose values `known` has. Touches nothing."""
    moves: Dict[str, str] = {}
    stays: Dict[str, str] = {}
    if spec.outputs.on_relaunch != "archive":
        return Plan(moves, stays)
    live = list(others(spec, state))
    for path in paths_of(spec, known):
        if not os.path.lexists(path) or path in moves:
            continue
        claim = next((other.run for other in live if other.would_lose(path)), None)
        if claim is not None:
            stays[path] = f"{claim} names it too, and is live"
        elif _led_away(path, spec, known):
            stays[path] = "a link leads out of the workdir"
        elif not any(within(path, source) for source in moves):
            moves[path] = _free_name(path, attempt, moves.values())
    return Plan(moves, stays)


def carry_out(moves: Mapping[str, str], staying: Set[str]) -> None:
    """Renames each source to its target, so far as that is not done. Raises OSError."""
    for source, target in moves.items():
        if os.path.lexists(source):
            _set_aside(source, target, staying)


def spared(workdir: str, patterns: Collection[str]) -> Set[str]:
    """What `resume.when` matches, under its own name and that of what it links to."""
    return {each for path in matching(workdir, patterns) for each in (true_path(path), os.path.realpath(path))}


def _set_aside(source: str, target: str, staying: Set[str]) -> None:
    """A folder that holds something which stays does so too, and the rest of what is in it goes."""
    if source in staying:
        return
    inside = os.path.realpath(source) if os.path.islink(source) else source
    if not any(within(each, inside) for each in staying):
        if not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(source, target)
        return
    if os.path.islink(source):
        return  # it must go on leading to what stays
    for name in sorted(os.listdir(source)):
        _set_aside(os.path.join(source, name), os.path.join(target, name), staying)


def _free_name(path: str, attempt: int, taken: Collection[str]) -> str:
    """`outputs.attempt-1`; with a number behind where an earlier run's stands there."""
    name = f"{path}.attempt-{attempt}"
    number = 2
    while os.path.lexists(name) or name in taken:
        name = f"{path}.attempt-{attempt}.{number}"
        number += 1
    return name


def _led_away(path: str, spec: RunSpec, known: Known) -> bool:
    """Whether a path that is named below the workdir lies elsewhere in truth."""
    workdir = shell.workdir(spec, known)
    named = [expand(braces.render(each, known, quote=False), workdir) for each in spec.outputs.paths]
    below = [each for each in named if true_path(each) == path and within(each, workdir)]
    return bool(below) and not within(path, os.path.realpath(workdir))
