"""Processes as /proc shows them, and signals that can't hit another one.

A pid is always a pid and a start time (`ProcessId`): pids are used again. A signal goes by pidfd, opened first and
checked after, so that what was checked is what is hit. On the node nobody else sends a signal to a pid, but for the
faults of a test (`faults`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of /proc/PID/stat
CHUNK = 1 << 16


class ProcessId(NamedTuple):
    pid: int
    start: int  # clock ticks since boot, as /proc/PID/stat has it


@dataclass(frozen=True)
class Process:
    id: ProcessId
    ppid: int
    state: str  # the letter in /proc/PID/stat, of the thread that leads the process
    comm: str  # cut at 15 characters by the kernel
    uid: int  # effective
    session: int
    threads: int
    argv: Tuple[str, ...]  # empty for a zombie, and for one that has overwritten it

    @property
    def alive(self) -> bool:
        """Whether any of it still runs. A zombie counts as gone, unless only its leading thread has ended."""
        return self.state not in "ZXx" or self.threads > 1


def find(pid: int) -> Optional[Process]:
    """The process that has this pid now, a zombie too; None where there is none (kernel threads don't count)."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The name, in brackets, may itself hold spaces and brackets: what follows the last one is plain.
    head, _, tail = stat.rpartition(b")")
    fields = tail.split()
    if int(fields[6]) & KERNEL_THREAD:
        return None
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    return Process(
        id=ProcessId(pid, int(fields[19])),
        ppid=int(fields[1]),
        state=fields[0].decode(),
        comm=_text(head.partition(b"(")[2]),
        uid=uid,
        session=int(fields[3]),
        threads=int(fields[17]),
        argv=tuple(_text(word) for word in (_read(f"/proc/{pid}/cmdline") or b"").split(b"\0")[:-1]),
    )


def scan() -> List[Process]:
    """Every process that we can see, by rising pid. Not one moment's picture: some may start or end meanwhile."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in map(find, pids) if process is not None]


def children(pid: int) -> List[int]:
    """The pids of its children now, of all its threads: much faster than a scan. Empty where the kernel can't say."""
    found: List[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in (_read(f"/proc/{pid}/task/{thread}/children") or b"").split()]
    return found


def alive(process: ProcessId) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    found = find(process.pid)
    return found is not None and found.id == process and found.alive


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for the signal (a shell: a trap)."""
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        name, _, mask = line.partition(b":")
        if name == b"SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def environ(pid: int) -> Optional[Dict[str, str]]:
    """The environment that it was started with; None where it is closed to us or the process is gone.

    The first of two equal names counts, as it does for the process itself.
    """
    data = _read(f"/proc/{pid}/environ")
    if not data:  # a process whose leading thread has ended shows it in its other threads only
        data = next((text for text in map(_read, _elsewhere(pid, "environ")) if text), data)
    if data is None:
        return None
    found: Dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(_text(name), _text(value))
    return found


def namespace(pid: int) -> Optional[str]:
    """Its PID namespace, as a name to compare; None where it is closed to us."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def signal(process: ProcessId, number: int) -> bool:
    """Sends the signal to this very process. False: it is gone, or we may not (its state then says which)."""
    try:
        pidfd = _pidfd_open(process.pid)
    except OSError:
        return False
    try:
        found = find(process.pid)
        if found is None or found.id != process or not found.alive:
            return False
        if pidfd is None:
            os.kill(process.pid, number)  # a kernel before 5.3: between check and signal the pid could pass on
        else:
            _pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


def descriptor(process: ProcessId) -> Optional[int]:
    """A pidfd, readable once this very process has ended; None where there is none to be had. The caller closes it."""
    try:
        pidfd = _pidfd_open(process.pid)
    except OSError:
        return None
    if pidfd is not None and not alive(process):
        os.close(pidfd)
        return None
    return pidfd


def _elsewhere(pid: int, name: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if thread != str(pid):
                yield f"/proc/{pid}/task/{thread}/{name}"


def _read(path: str) -> Optional[bytes]:
    """The whole of a file in /proc; None where it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: List[bytes] = []
        while True:
            part = os.read(fd, CHUNK)
            if not part:
                return b"".join(parts)
            parts.append(part)
    except OSError:  # it ended between open and read
        return None
    finally:
        os.close(fd)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# pidfds: Python has them from 3.9 on, kernels from 5.3 (these numbers on every architecture but alpha).
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434
_LIBC = ctypes.CDLL(None, use_errno=True)


def _pidfd_open(pid: int) -> Optional[int]:
    """None where the kernel, or a container's seccomp filter, has no such call; OSError where the process is gone."""
    try:
        return _syscall(_SYS_PIDFD_OPEN, pid, 0)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def _pidfd_send_signal(pidfd: int, number: int) -> None:
    _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0)


def _syscall(number: int, *arguments: int) -> int:
    done = int(_LIBC.syscall(*(ctypes.c_long(value) for value in (number, *arguments))))
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return done
