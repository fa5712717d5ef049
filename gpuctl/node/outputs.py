"""What a job wrote is set aside before the next attempt: renamed beside itself (`outputs.attempt-1`), never deleted.

First the journal says what goes where (`relaunching`: `archived`), then it is renamed; doing it twice does no harm.
What `resume.when` matches stays. Links are renamed as links, never followed; a path that another live run names is
left alone, and a launch that would clash so is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Collection, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from gpuctl.node import shell
from gpuctl.node.checkpoints import matching
from gpuctl.node.folders import RunFolder, StateFolder, expand, home
from gpuctl.node.journal import outline
from gpuctl.node.refusal import BAD_USAGE, UNSAFE, Refusal
from gpuctl.wire import braces
from gpuctl.wire.life import fold
from gpuctl.wire.runspec import RunSpec, Scalar

Known = Mapping[str, Scalar]


@dataclass(frozen=True)
class Plan:
    """Where each output goes, and why some stay."""

    moves: Dict[str, str]  # source → target
    stays: Dict[str, str]  # path → why


def paths_of(spec: RunSpec, known: Known) -> List[str]:
    """`outputs.paths` on this node, in their one true form: no link but perhaps the last part."""
    base = shell.workdir(spec, known)
    return [_true(expand(braces.render(path, known, quote=False), base)) for path in spec.outputs.paths]


def check(spec: RunSpec, known: Known, state: StateFolder) -> None:
    """Before a launch. Raises Refusal: what can't be set aside at all, or belongs to another live run as well."""
    if not spec.outputs.paths:
        return
    workdir = shell.workdir(spec, known)
    if spec.outputs.on_relaunch == "archive":
        for path in paths_of(spec, known):
            for kept, what in ((workdir, "the workdir"), (home(), "the home folder"), (state.path, "gpuctl's state")):
                if _within(os.path.realpath(kept), path):
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
        path, other = clash
        raise Refusal(
            UNSAFE, f"outputs.paths: {path} belongs to {other} as well, which is live, and would be renamed under it",
            "name another path (`{run}` in it makes it the run's own), or wait for that run's end",
        )  # fmt: skip


def clash_of(spec: RunSpec, known: Known, state: StateFolder) -> Optional[Tuple[str, str]]:
    """A path of this run that another live run names too, where either would rename it; and that run."""
    mine = paths_of(spec, known)
    for run, other, theirs in _live_others(spec, state):
        if "archive" not in (spec.outputs.on_relaunch, other.outputs.on_relaunch):
            continue
        for path in mine:
            if any(_within(path, each) or _within(each, path) for each in theirs):
                return path, run
    return None


def plan(spec: RunSpec, known: Known, attempt: int, state: StateFolder) -> Plan:
    """What is to be set aside after this attempt, whose values `known` has. Touches nothing."""
    moves: Dict[str, str] = {}
    stays: Dict[str, str] = {}
    if spec.outputs.on_relaunch != "archive":
        return Plan(moves, stays)
    others = [(run, theirs) for run, _, theirs in _live_others(spec, state)]
    for path in paths_of(spec, known):
        if not os.path.lexists(path) or path in moves:
            continue
        claim = next((run for run, theirs in others if any(_overlap(path, each) for each in theirs)), None)
        if claim is not None:
            stays[path] = f"{claim} names it too, and is live"
        elif _led_away(path, spec, known):
            stays[path] = "a link leads out of the workdir"
        elif not any(_within(path, source) for source in moves):
            moves[path] = _free_name(path, attempt, moves.values())
    return Plan(moves, stays)


def carry_out(moves: Mapping[str, str], staying: Set[str]) -> None:
    """Renames each source to its target, so far as that is not done. Raises OSError."""
    for source, target in moves.items():
        if os.path.lexists(source):
            _set_aside(source, target, staying)


def spared(workdir: str, patterns: Collection[str]) -> Set[str]:
    """What `resume.when` matches, under its own name and that of what it links to."""
    return {each for path in matching(workdir, patterns) for each in (_true(path), os.path.realpath(path))}


def _set_aside(source: str, target: str, staying: Set[str]) -> None:
    """A folder that holds something which stays does so too, and the rest of what is in it goes."""
    if source in staying:
        return
    inside = os.path.realpath(source) if os.path.islink(source) else source
    if not any(_within(each, inside) for each in staying):
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


def _live_others(spec: RunSpec, state: StateFolder) -> Iterator[Tuple[str, RunSpec, List[str]]]:
    """Every other run that has not ended, and the outputs that it names. The run that this one waits for hands its
    outputs over, so it is not one of them."""
    for folder in state.all_runs():
        if folder.run in (spec.run, spec.after):
            continue
        found = _named_by(folder)
        if found is not None and found[0].after != spec.run:
            yield (folder.run, *found)


def _named_by(folder: RunFolder) -> Optional[Tuple[RunSpec, List[str]]]:
    try:
        other = folder.spec()
        if not other.outputs.paths:
            return None
        life = fold(outline(folder.journal))
        if life.over:
            return None
        known = shell.values(other, life.params or other.params, life.attempt or 1, len(life.gpus), 0)
        return other, paths_of(other, known)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # being made, being removed, or no run's at all


def _led_away(path: str, spec: RunSpec, known: Known) -> bool:
    """Whether a path that is named below the workdir lies elsewhere in truth."""
    workdir = shell.workdir(spec, known)
    named = [expand(braces.render(each, known, quote=False), workdir) for each in spec.outputs.paths]
    below = [each for each in named if _true(each) == path and _within(each, workdir)]
    return bool(below) and not _within(path, os.path.realpath(workdir))


def _true(path: str) -> str:
    """The path with links resolved in all but its last part: renaming it renames that, not what it leads to."""
    path = os.path.normpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) if path != os.sep else path


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _overlap(one: str, other: str) -> bool:
    return _within(one, other) or _within(other, one)
