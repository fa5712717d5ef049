"""Room on disks: the one that holds a run, without which nothing can be journaled, and those that its job writes to."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Dict, List, Sequence

ENOUGH_BYTES = 1 << 20


def has_room(folder: str) -> bool:
    """Whether a little can still be written there. Tried only where little is left: root may use what is reserved."""
    try:
        disk = os.statvfs(folder)
        if disk.f_bavail * disk.f_frsize > ENOUGH_BYTES:
            return True
        path = os.path.join(folder, ".room")
        try:
            with open(path, "wb", buffering=0) as probe:
                probe.write(b"\0" * 4096)
                os.fsync(probe.fileno())
        finally:
            with contextlib.suppress(FileNotFoundError):  # there was no room even for its name
                os.unlink(path)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


class Disks:
    """The disks of a job's folders. Nothing is written to them, and they are asked in a thread of its own: a network
    file system whose server is gone blocks whoever asks it, and must not block the supervisor."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = list(folders)
        self._full: List[str] = []
        self._asking = threading.Thread()

    def full(self, patience_s: float = 0.0) -> List[str]:
        """Why each is full, in words: as it is now where they answer within `patience_s`, else as they last said."""
        if not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
        self._asking.join(patience_s)
        return list(self._full)

    def _ask(self) -> None:
        found: Dict[int, str] = {}
        for folder in map(_existing, self._folders):
            try:
                device, disk = os.stat(folder).st_dev, os.statvfs(folder)
            except OSError:
                continue  # a disk that can't be asked is not known to be full
            free = (disk.f_bfree if os.getuid() == 0 else disk.f_bavail) * disk.f_frsize
            inodes = disk.f_ffree if os.getuid() == 0 else disk.f_favail
            if disk.f_blocks and free <= ENOUGH_BYTES:
                found.setdefault(device, f"the disk that holds {folder} is full")
            elif disk.f_files and inodes == 0:
                found.setdefault(device, f"the disk that holds {folder} has no inode left for another file")
        self._full = list(found.values())


def _existing(folder: str) -> str:
    """The folder, or the nearest above it that exists already."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
