"""Checkpoints: which of the job's own files an attempt can go on from.

A job may die while it writes one. So a name that says "unfinished" is passed over, as is a file whose own format says
that its end is missing, a folder that lacks files which older ones beside it have, and what still changes. What no look
can tell, the next attempt finds out: then the one before it is next (`gpuctl.watchdog.budgets`).
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from typing import Collection, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple, Union

from gpuctl.node.folders import expand
from gpuctl.node.globs import matches

SETTLED_S = 3.0
"""A file that has not changed for so long is taken for written."""

_UNFINISHED = re.compile(
    r"(\.(tmp|temp|part|partial|incomplete|writing)([-_.]?\d+)?|~)\Z|\A(\.?tmp[-_.])", re.IGNORECASE
)
_MOST_FILES = 20000  # of one checkpoint that is a folder
_MOST_NAMES = 200_000  # that are looked through for what matches
_TIME_DIGITS = 8
_ZIP, _ZIP_END, _ZIP_END_ROOM = b"PK\x03\x04", b"PK\x05\x06", 22 + 65535


@dataclass(frozen=True)
class Checkpoint:
    """One file or folder. A rewritten one is another checkpoint: `written` and `size` belong to it."""

    path: str
    written: float  # wall time, as files have it; of a folder: its newest file's
    size: int
    holds: FrozenSet[str] = frozenset()  # of a folder: its files' names, without the number that is the folder's own

    @property
    def key(self) -> Tuple[str, float]:
        return self.path, self.written


def checkpoints(workdir: str, patterns: Collection[str]) -> List[Checkpoint]:
    """Those that match and look whole, the newest first."""
    paths = [path for path in matching(workdir, patterns) if not _unfinished(os.path.relpath(path, workdir))]
    found = [checkpoint for checkpoint in map(_look, paths) if checkpoint is not None]
    found.sort(key=lambda each: (each.written, _by_number(each.path)))
    return [each for place, each in enumerate(found) if _holds_all(each, found[:place])][::-1]


def _holds_all(checkpoint: Checkpoint, older: Sequence[Checkpoint]) -> bool:
    """Whether a folder has all that the two before it, beside it, both have. What only one of them has may have been
    added by chance or for good; so a job that writes less from some time on is followed from its second on."""
    beside = [each for each in older if each.holds and os.path.dirname(each.path) == os.path.dirname(checkpoint.path)]
    usual = frozenset.intersection(*(each.holds for each in beside[-2:])) if beside else frozenset()
    return not checkpoint.holds or usual <= checkpoint.holds


def matching(workdir: str, patterns: Collection[str]) -> Set[str]:
    """All that matches, checkpoint or not, below `workdir` where a pattern names no other place."""
    whole = [expand(pattern) if pattern.startswith("~/") else pattern for pattern in patterns]
    return set(map(os.path.normpath, matches(workdir, whole, folders=True, most=_MOST_NAMES)))


def _look(path: str) -> Optional[Checkpoint]:
    """None where it is no checkpoint: empty, cut off, being written, or gone while it was looked at."""
    try:
        files = list(_files(path))
        if not files or not all(size > 0 or name != path for name, _, size in files):
            return None
        if any(_unfinished(os.path.basename(name)) or not looks_whole(name) for name, _, _ in files):
            return None
    except OSError:
        return None
    holds = frozenset(_kind(os.path.relpath(name, path), path) for name, _, _ in files if name != path)
    return Checkpoint(path, max(written for _, written, _ in files), sum(size for _, _, size in files), holds)


def _kind(name: str, folder: str) -> str:
    """A file's name without what differs from one checkpoint to the next: the step that the folder is called by, and
    times. The number of a shard or rank stays."""
    steps = {int(number) for number in re.findall(r"\d+", os.path.basename(folder))}
    return re.sub(
        r"\d+", lambda found: "#" if int(found[0]) in steps or len(found[0]) >= _TIME_DIGITS else found[0], name
    )


def _files(path: str) -> Iterator[Tuple[str, float, int]]:
    """The regular files of a checkpoint: their path, time and size."""
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        if stat.S_ISREG(found.st_mode):
            yield path, found.st_mtime, found.st_size
        return
    count = 0
    for folder, _, names in os.walk(path):
        for name in names:
            each = os.path.join(folder, name)
            one = os.stat(each)
            if stat.S_ISREG(one.st_mode) and count < _MOST_FILES:
                count += 1
                yield each, one.st_mtime, one.st_size


def _unfinished(path: str) -> bool:
    return any(_UNFINISHED.search(part) for part in path.split(os.sep) if part not in (os.curdir, os.pardir))


def looks_whole(path: str) -> bool:
    """False where the format says that the end is missing: a zip archive (what torch.save writes) or safetensors."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if head.startswith(_ZIP):
            file.seek(max(0, size - _ZIP_END_ROOM))
            return _ZIP_END in file.read()
        if path.endswith(".safetensors"):
            length = int.from_bytes(head, "little")
            return len(head) == 8 and 8 + length <= size and _tensors_end(file.read(length)) <= size - 8 - length
    return True


def _tensors_end(header: bytes) -> float:
    """Where the last tensor ends, counted from the header's end; infinity for what is no header."""
    try:
        tensors = json.loads(header)
        return max((value["data_offsets"][1] for name, value in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return float("inf")


def _by_number(path: str) -> List[Union[Tuple[int, int], Tuple[int, str]]]:
    """A key that sorts step_9 before step_10, for files of one time."""
    pieces = re.split(r"(\d+)", path)
    return [(1, int(piece)) if piece.isdigit() else (0, piece) for piece in pieces]
