"""A run's journal: one JSON object a line, numbered, in order. The supervisor is its only writer; anyone reads it.

What is read is what was written whole: readers stop at the last newline, and a new writer cuts off what is after it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import Any, Dict, List, Optional

from gpuctl.node.clock import boottime, now

Event = Dict[str, Any]

ROOM = 64 * 1024
"""Reserved for the last words on a full disk: some hundred events."""


class DiskFull(Exception):
    """No room even for the last words; nothing of the event was written."""


class Journal:
    """The writer. Opening it takes up where the last writer stopped, wherever that was."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._reserve = os.path.join(os.path.dirname(path), "reserve")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        reader = Reader(path)
        events = reader.read()
        self._end = reader.offset
        os.ftruncate(self._fd, self._end)
        self.seq: int = events[-1]["seq"] if events else 0
        self.short_of_room = False  # the disk filled up: the job is to be stopped, and then written about
        self._reserve_room()

    def append(self, type: str, attempt: Optional[int] = None, *, sync: bool = False, **fields: Any) -> Event:
        """Write one event and answer it; with `sync` it is on the disk when this returns. Raises `DiskFull`."""
        event: Event = {"seq": self.seq + 1, "time": now(), "mono_s": round(boottime(), 3), "type": type}
        if attempt is not None:
            event["attempt"] = attempt
        event.update(fields)
        line = json.dumps(event).encode("ascii") + b"\n"
        if not self._write(line, sync):
            self.short_of_room = True
            self._free_room()
            if not self._write(line, sync):
                raise DiskFull(f"{self.path}: no room for event {type}")
        self.seq += 1
        return event

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: bytes, sync: bool) -> bool:
        """All of the line, or nothing of it and False where the disk (or the quota) is full."""
        try:
            written = os.write(self._fd, line)
            if written == len(line):
                if sync:
                    os.fsync(self._fd)
                self._end += written
                return True
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        os.ftruncate(self._fd, self._end)
        return False

    def _reserve_room(self) -> None:
        """Best effort: a disk that has no room for it now is found out by the first event that does not fit."""
        with contextlib.suppress(OSError):
            fd = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, ROOM)
            finally:
                os.close(fd)

    def _free_room(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._reserve)


class Reader:
    """Reads on from where it stopped: each `read` answers the events that became whole since."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0  # behind the last newline that was read

    def read(self) -> List[Event]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [event for event in map(_parse, whole.splitlines()) if event is not None]


def read(path: str, after: int = 0) -> List[Event]:
    """All events with a `seq` above `after`."""
    return [event for event in Reader(path).read() if event["seq"] > after]


def outline(path: str) -> List[Event]:
    """All events but those of progress that the next one overtakes: as good as `read` to fold a life from, and much
    faster for a run of days."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    lines: List[bytes] = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        if lines and _PROGRESS in lines[-1] and _PROGRESS in line:
            lines.pop()
        lines.append(line)
    return [event for event in map(_parse, lines) if event is not None]


def last(path: str) -> Optional[Event]:
    """The last event, found from the end."""
    try:
        with open(path, "rb") as file:
            events = tail(file.fileno())
    except FileNotFoundError:
        return None
    return events[-1] if events else None


def tail(fd: int) -> List[Event]:
    """The last events, however long the journal is: enough to fold from whether its run is over."""
    data = os.pread(fd, ROOM, max(0, os.fstat(fd).st_size - ROOM))
    whole = data[: data.rfind(b"\n") + 1].splitlines()
    return [event for event in map(_parse, whole) if event is not None]


_PROGRESS = b'"type": "progress"'
"""As `append` writes it. Inside a string, JSON would escape the quotes."""


def _parse(line: bytes) -> Optional[Event]:
    """None for a line that no writer wrote (a power cut can leave a hole of NULs): it must not hide those around it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("seq"), int) else None
