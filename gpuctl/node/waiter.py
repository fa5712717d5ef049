"""`Waiter`: sleeps until a file changes, a descriptor is readable, or time is up.

inotify where there is an instance left (a user has 128 of them), else looking four times a second. A burst of changes
wakes it at once, and then at most once in `pace_s`, so that a job that prints without pause costs little.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from typing import Dict, Optional, Set, Tuple, Union

PACE_S = 0.05
LOOK_EVERY_S = 0.25

_IN_MODIFY, _IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x2, 0x4, 0x80, 0x100, 0x400, 0x800
_IN_Q_OVERFLOW, _IN_IGNORED = 0x4000, 0x8000
_WANTED = _IN_MODIFY | _IN_ATTRIB | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE_SELF | _IN_MOVE_SELF
_GONE = _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_IGNORED  # ATTRIB: unlinked, but still open somewhere
_HEADER = struct.Struct("iIII")  # wd, mask, cookie, length of the name that follows

Woke = Set[Union[str, int]]


class Waiter:
    """Watch paths (a folder: what appears and changes in it) and descriptors; then `wait` says which of them woke."""

    def __init__(self, *, inotify: bool = True, pace_s: float = PACE_S) -> None:
        self._pace_s = pace_s
        self._looks: _Looks = _Looks()
        self._notices: Optional[_Notices] = _Notices.open() if inotify else None
        self._fds: Set[int] = set()
        self._woke = 0.0

    def watch(self, path: str) -> None:
        """The path, not the file: it may not exist yet, vanish, or become another file."""
        if self._notices is not None and self._notices.watch(path):
            self._looks.forget(path)
        else:
            self._looks.watch(path)

    def forget(self, path: str) -> None:
        self._looks.forget(path)
        if self._notices is not None:
            self._notices.forget(path)

    def add_fd(self, fd: int) -> None:
        self._fds.add(fd)

    def remove_fd(self, fd: int) -> None:
        self._fds.discard(fd)

    def wait(self, timeout_s: float) -> Woke:
        """The paths and descriptors that woke it, none where the time is up. Descriptors wake it without any pace."""
        deadline = time.monotonic() + timeout_s
        changed: Set[str] = set()
        while True:
            now = time.monotonic()
            at = min(deadline, self._woke + self._pace_s) if changed else deadline
            if self._looks.watched:
                at = min(at, now + LOOK_EVERY_S)
            readable = self._poll(max(0.0, at - now), listen=not changed)
            changed |= self._changed()
            now = time.monotonic()
            if readable or now >= deadline or (changed and now >= self._woke + self._pace_s):
                self._woke = now if changed else self._woke
                return {*changed, *readable}

    def close(self) -> None:
        if self._notices is not None:
            self._notices.close()

    def _changed(self) -> Set[str]:
        changed = self._looks.changed()
        moved = set(changed)
        if self._notices is not None:
            noticed, gone = self._notices.changed()
            changed |= noticed
            moved |= gone
        for path in moved:
            self.watch(path)  # what is there now is another file: from here on that one
        return changed

    def _poll(self, seconds: float, *, listen: bool) -> Set[int]:
        """The readable ones of our descriptors. With `listen`, a change of a file ends it too."""
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        if listen and self._notices is not None:
            poll.register(self._notices.fd, select.POLLIN)
        return {fd for fd, _ in poll.poll(int(seconds * 1000 + 0.999))} & self._fds


class _Notices:
    """The kernel's notices (inotify)."""

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc = libc
        self.fd = fd
        self._paths: Dict[int, str] = {}
        self._watches: Dict[str, int] = {}

    @classmethod
    def open(cls) -> Optional[_Notices]:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        return cls(libc, fd) if fd >= 0 else None

    def watch(self, path: str) -> bool:
        """False where there is nothing there, or no watch left."""
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(path), _WANTED)
        before = self._watches.pop(path, None)
        if before is not None and before != watch:
            self._paths.pop(before, None)
            self._libc.inotify_rm_watch(self.fd, before)
        if watch < 0:
            return False
        self._paths[watch] = path
        self._watches[path] = watch
        return True

    def forget(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None:
            self._paths.pop(watch, None)
            self._libc.inotify_rm_watch(self.fd, watch)

    def changed(self) -> Tuple[Set[str], Set[str]]:
        """The paths whose files changed, and those among them where another file may stand by now."""
        changed: Set[str] = set()
        gone: Set[str] = set()
        while True:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return changed, gone
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size + length
                if mask & _IN_Q_OVERFLOW:
                    changed.update(self._watches)  # some were lost: whoever waits must look at all
                path = self._paths.get(watch)
                if path is not None:
                    changed.add(path)
                    if mask & _GONE:
                        gone.add(path)

    def close(self) -> None:
        os.close(self.fd)


Look = Tuple[int, int, int]


class _Looks:
    """What a look at a path saw last: for where there is no inotify, and for paths that do not exist yet."""

    def __init__(self) -> None:
        self.watched: Dict[str, Tuple[Look, ...]] = {}

    def watch(self, path: str) -> None:
        self.watched.setdefault(path, _look(path))

    def forget(self, path: str) -> None:
        self.watched.pop(path, None)

    def changed(self) -> Set[str]:
        seen = {path: _look(path) for path in self.watched}
        changed = {path for path, look in seen.items() if look != self.watched[path]}
        self.watched = seen
        return changed


def _look(path: str) -> Tuple[Look, ...]:
    """Which file is there, how large, changed when; of a folder also its files'. Empty where there is nothing."""
    try:
        looks = [os.stat(path)]
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                looks += [entry.stat(follow_symlinks=False) for entry in sorted(entries, key=lambda entry: entry.name)]
    except OSError:
        return ()
    return tuple((look.st_ino, look.st_size, look.st_mtime_ns) for look in looks)
