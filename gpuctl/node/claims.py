"""What the live runs of this user name as theirs: no other run renames it under them, or goes on from it."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

from gpuctl.node import shell
from gpuctl.node.checkpoints import matching
from gpuctl.node.folders import RunFolder, StateFolder, expand
from gpuctl.node.globs import MAGIC
from gpuctl.node.journal import last, outline
from gpuctl.wire import braces
from gpuctl.wire.life import fold
from gpuctl.wire.runspec import RunSpec, Scalar

Known = Mapping[str, Scalar]


@dataclass(frozen=True)
class Claim:
    """Of one live run, in true paths."""

    run: str
    outputs: List[str]
    archives: bool
    workdir: str
    globs: List[str]  # its logs and its checkpoints
    checkpoints: Optional[str]

    def would_lose(self, path: str) -> bool:
        """Whether it names what is renamed with `path`."""
        return (
            any(overlap(path, each) for each in self.outputs)
            or within(self.workdir, path)
            or any(within(_fixed(each), path) for each in self.globs)
            or any(within(true_path(each), path) for each in matching(self.workdir, self.globs))
        )


def claim_of(spec: RunSpec, known: Known) -> Claim:
    """What the run names, with the values of an attempt."""
    workdir = os.path.realpath(shell.workdir(spec, known))
    logs = [_glob(each, spec, known) for each in spec.watch.logs]
    # any attempt's checkpoints will do
    checkpoints = _glob(spec.resume.when, spec, {**known, "attempt": "*"}) if spec.resume is not None else None
    globs = logs if checkpoints is None else [*logs, checkpoints]
    return Claim(
        spec.run, paths_of(spec, known), spec.outputs.on_relaunch == "archive", workdir, globs, checkpoints
    )  # fmt: skip


def others(spec: RunSpec, state: StateFolder) -> Iterator[Claim]:
    """Of every other run that has not ended. The run that this one waits for hands over what it has, so it is not one
    of them."""
    for folder in state.all_runs():
        if folder.run in (spec.run, spec.after):
            continue
        found = _of_live(folder)
        if found is not None and found[0].after != spec.run:
            yield found[1]


def _of_live(folder: RunFolder) -> Optional[Tuple[RunSpec, Claim]]:
    try:
        if (last(folder.journal) or {}).get("type") == "run_finished":  # as most: spares reading all of it
            return None
        spec, life = folder.spec(), fold(outline(folder.journal))
        known = shell.values(spec, life.params or spec.params, life.attempt or 1, len(life.gpus), 0)
        return None if life.over else (spec, claim_of(spec, known))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # being made, being removed, or no run's at all


def paths_of(spec: RunSpec, known: Known) -> List[str]:
    """`outputs.paths` on this node, in their one true form: no link but perhaps the last part."""
    base = shell.workdir(spec, known)
    return [true_path(expand(braces.render(path, known, quote=False), base)) for path in spec.outputs.paths]


def true_path(path: str) -> str:
    """The path with links resolved in all but its last part: renaming it renames that, not what it leads to."""
    path = os.path.normpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) if path != os.sep else path


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def overlap(one: str, other: str) -> bool:
    return within(one, other) or within(other, one)


def meet(one: str, other: str) -> bool:
    """Whether some path could match both globs."""
    return _parts_meet(tuple(one.split(os.sep)), tuple(other.split(os.sep)))


def _glob(pattern: str, spec: RunSpec, known: Known) -> str:
    """A whole path, links in its fixed part resolved."""
    whole = expand(braces.render(pattern, known, quote=False), glob.escape(shell.workdir(spec, known)))
    fixed = _fixed(whole)
    return true_path(fixed) if fixed == whole else os.path.join(os.path.realpath(fixed), os.path.relpath(whole, fixed))


def _fixed(pattern: str) -> str:
    """The part before the first wildcard: a folder, or all of it."""
    parts = pattern.split(os.sep)
    count = next((place for place, part in enumerate(parts) if not MAGIC.isdisjoint(part)), len(parts))
    return os.sep.join(parts[:count]) or os.sep


def _parts_meet(one: Sequence[str], other: Sequence[str]) -> bool:
    if not one or not other:
        return all(part == "**" for part in (*one, *other))
    for deep, flat in ((one, other), (other, one)):
        if deep[0] == "**":
            return _parts_meet(deep[1:], flat) or _parts_meet(deep, flat[1:])
    return _names_meet(one[0], other[0]) and _parts_meet(one[1:], other[1:])


@lru_cache(maxsize=1024)
def _names_meet(one: str, other: str) -> bool:
    """Of one part of a path. A set of characters counts as any character: rather too many than too few."""
    if MAGIC.isdisjoint(one) or MAGIC.isdisjoint(other):
        return fnmatchcase(one, other) or fnmatchcase(other, one)
    if not one or not other:
        return not (one + other).strip("*")
    for stars, rest in ((one, other), (other, one)):
        if stars[0] == "*":
            return _names_meet(stars[1:], rest) or _names_meet(stars, _rest(rest))
    any_character = not MAGIC.isdisjoint(one[0] + other[0])
    return (any_character or one[0] == other[0]) and _names_meet(_rest(one), _rest(other))


def _rest(pattern: str) -> str:
    """Without what stands for its first character."""
    end = pattern.find("]", 2) if pattern[0] == "[" else -1
    return pattern[end + 1 :] if end > 0 else pattern[1:]
