"""`matches`: the files that globs name below a folder, found at a bounded cost, since it is asked for again and again.

As Python's `glob` does it, but for two things: `**` does not go into folders that are links (a link to a parent folder
would be entered forty levels deep, one to a data set for ever), and no more than `MOST_ENTRIES` names are looked at,
the shallow ones first. A link that a pattern names itself, or meets by `*`, is followed.
"""

from __future__ import annotations

import os
from collections import deque
from fnmatch import fnmatchcase
from typing import Deque, Dict, Iterator, List, Sequence, Set, Tuple

MOST_ENTRIES = 20_000
MAGIC = frozenset("*?[")


def matches(
    folder: str, patterns: Sequence[str], *, folders: bool = False, most: int = MOST_ENTRIES
) -> List[str]:  # fmt: skip
    """The regular files below `folder` that match, each once, in the order of their names; with `folders` all that
    matches."""
    there = os.path.exists if folders else os.path.isfile
    names = _Names(most)
    found: Set[str] = set()
    waiting: Deque[Tuple[str, Tuple[str, ...]]] = deque()
    for pattern in patterns:
        waiting.append(("/" if pattern.startswith("/") else folder, _parts(pattern)))
    while waiting:
        path, parts = waiting.popleft()
        if parts:
            waiting.extend(_step(names, path, parts))
        elif there(path):
            found.add(path)
    return sorted(found)


def _parts(pattern: str) -> Tuple[str, ...]:
    parts = tuple(pattern.lstrip("/").split("/"))
    return (*parts, "*") if parts[-1] == "**" else parts  # all files below


def _step(names: _Names, path: str, parts: Tuple[str, ...]) -> Iterator[Tuple[str, Tuple[str, ...]]]:
    """Where the first part leads from `path`, and the parts that are to be matched there."""
    first, rest = parts[0], parts[1:]
    if first == "**":
        yield path, rest
        for name, is_folder in names.of(path):
            if is_folder and not name.startswith("."):
                yield os.path.join(path, name), parts
    elif MAGIC.isdisjoint(first):
        yield os.path.join(path, first), rest
    else:
        for name, _ in names.of(path):
            if fnmatchcase(name, first) and (first.startswith(".") or not name.startswith(".")):
                yield os.path.join(path, name), rest


class _Names:
    """What folders hold, each read once; nothing more after `most` names."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: Dict[str, List[Tuple[str, bool]]] = {}

    def of(self, path: str) -> List[Tuple[str, bool]]:
        """The names, and whether each is a folder and no link; none of what is no folder, or closed to us."""
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: str) -> List[Tuple[str, bool]]:
        found: List[Tuple[str, bool]] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if self._left <= 0:
                        break
                    self._left -= 1
                    found.append((entry.name, entry.is_dir(follow_symlinks=False)))
        except OSError:
            return found
        return found
