"""`Follower`: reads on in files that others write, from where it stopped, whatever they do to them.

A file that was renamed away is read to its end, then the new one of its name from its start; one that was cut is read
from its start again, and that is said. The same file under two names is read once. Files that stood there before the
attempt (`standing`) are read from where they ended then: what an earlier attempt wrote is not this one's.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from gpuctl.node.globs import matches
from gpuctl.wire.word import Word

PIECE = 1 << 18  # of one file in one `read`: a log of gigabytes is read in portions
MOST_FILES = 200
SCAN_EVERY_S = (1.0, 30.0)  # where looking takes long, at most a hundredth of the time
SCAN_SHARE = 0.01
TAIL = 64

FileId = Tuple[int, int]  # device and inode


@dataclass(frozen=True)
class Chunk:
    source: str
    offset: int  # of its first byte in the file
    data: bytes


@dataclass(frozen=True)
class Truncated:
    """The file was cut short. What was written and cut between two looks is lost, and no one knows how much."""

    source: str
    lost_bytes: Optional[int] = None


@dataclass(frozen=True)
class Mark(Word):
    """How far a file was read, and the bytes before that: they tell whether it is still the same text."""

    offset: int
    tail: str = ""  # hexadecimal

    @classmethod
    def at(cls, fd: int, offset: int) -> Mark:
        start = max(0, offset - TAIL)
        return cls(offset, os.pread(fd, offset - start, start).hex())

    def holds(self, fd: int) -> bool:
        return os.fstat(fd).st_size >= self.offset and Mark.at(fd, self.offset) == self


class Follower:
    def __init__(self) -> None:
        self._files: Dict[str, _File] = {}
        self._globs: Dict[Tuple[str, Tuple[str, ...]], Mapping[str, Mark]] = {}
        self._left: Dict[FileId, Mark] = {}  # files that were renamed away, in case their new name is followed too
        self._scan_at = float("-inf")

    @property
    def paths(self) -> List[str]:
        """What it follows, for whoever wants to be woken by a change."""
        return list(self._files)

    def add(self, path: str, source: str, mark: Optional[Mark] = None) -> None:
        """Follow `path`, from `mark` on where the file still is the one that was marked. It may not exist yet."""
        if path not in self._files:
            self._files[path] = _File(path, source, mark)

    def add_globs(self, folder: str, patterns: Sequence[str], standing: Optional[Mapping[str, Mark]] = None) -> None:
        """Follow all files below `folder` that match, also later ones. Their source is the path below it."""
        if (folder, tuple(patterns)) not in self._globs:
            self._globs[folder, tuple(patterns)] = standing or {}
            self._scan_at = float("-inf")

    def read(self, *, scan: bool = False) -> List[Union[Chunk, Truncated]]:
        """What was written since. Call again until it answers nothing, then wait for a change.

        New files are looked for now and then; with `scan` now: for a last read, after the writer's end.
        """
        if scan:
            self._scan_at = float("-inf")
        self._scan()
        found: List[Union[Chunk, Truncated]] = []
        for file in list(self._files.values()):
            try:
                found += self._read(file)
            except OSError:
                file.standing = file.mark()  # a stale handle of a network file system: next time anew, from here
                file.close()
        return found

    def leap(self, keep: int) -> List[Tuple[str, int]]:
        """Goes on `keep` bytes before each file's end. Answers which were cut short by that, and by how many bytes."""
        skipped = []
        for file in self._files.values():
            if file.fd is not None:
                left = os.fstat(file.fd).st_size - keep - file.offset
                if left > 0:
                    skipped.append((file.source, left))
                    file.begin(Mark.at(file.fd, file.offset + left))
        return skipped

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _scan(self) -> None:
        began = time.monotonic()
        if not self._globs or began < self._scan_at:
            return
        for (folder, patterns), standing in self._globs.items():
            for path in matches(folder, patterns):
                if path not in self._files and len(self._files) < MOST_FILES:
                    self.add(path, os.path.relpath(path, folder), standing.get(path))
        soonest, latest = SCAN_EVERY_S
        self._scan_at = began + min(latest, max(soonest, (time.monotonic() - began) / SCAN_SHARE))

    def _read(self, file: _File) -> Iterator[Union[Chunk, Truncated]]:
        if file.fd is None and not self._open(file):
            return
        yield from file.read()
        if file.replaced() and file.at_end():
            self._left[file.id] = file.mark()
            file.close()
            if self._open(file):
                yield from file.read()

    def _open(self, file: _File) -> bool:
        if not file.open():
            return False
        if any(other is not file and other.fd is not None and other.id == file.id for other in self._files.values()):
            file.close()  # followed under another name already
            return False
        left = self._left.pop(file.id, None)
        file.begin(left if left is not None else file.standing)
        file.standing = None
        return True


class _File:
    def __init__(self, path: str, source: str, standing: Optional[Mark]) -> None:
        self.path = path
        self.source = source
        self.standing = standing
        self.fd: Optional[int] = None
        self.id: FileId = (0, 0)
        self.offset = 0
        self._tail = Mark(0)

    def open(self) -> bool:
        """False where there is no regular file."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return False
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            return False
        self.fd, self.id = fd, (found.st_dev, found.st_ino)
        return True

    def begin(self, mark: Optional[Mark]) -> None:
        assert self.fd is not None
        known = mark is not None and mark.holds(self.fd)
        self._tail = mark if known and mark is not None else Mark(0)
        self.offset = self._tail.offset

    def read(self) -> Iterator[Union[Chunk, Truncated]]:
        assert self.fd is not None
        size = os.fstat(self.fd).st_size
        if size == self.offset:
            return
        if not self._tail.holds(self.fd):
            yield Truncated(self.source)
            self.offset = _first_data(self.fd)
        data = os.pread(self.fd, PIECE, self.offset)
        if data:
            yield Chunk(self.source, self.offset, data)
            self.offset += len(data)
        self._tail = Mark.at(self.fd, self.offset)

    def at_end(self) -> bool:
        return self.fd is not None and os.fstat(self.fd).st_size <= self.offset

    def replaced(self) -> bool:
        """Is another file, or none, at its path now?"""
        try:
            found = os.stat(self.path)
        except OSError:
            return False  # renamed away and nothing new yet: who writes it may go on for a while
        return (found.st_dev, found.st_ino) != self.id

    def mark(self) -> Mark:
        return self._tail

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def standing(folder: str, patterns: Sequence[str]) -> Dict[str, Mark]:
    """Where the files that match end now, by path: to be kept before an attempt starts."""
    marks: Dict[str, Mark] = {}
    for path in matches(folder, patterns):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                marks[path] = Mark.at(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
    return marks


def _first_data(fd: int) -> int:
    """Where a cut file's text begins: a writer that does not append leaves a hole up to where it was."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:
        return 0
