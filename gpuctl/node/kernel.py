"""The kernel's log, as far as this account may read it: OOM kills and Xids, with the pids that they name.

A container and an unprivileged user often can't read it; then it says nothing, and what counts is counted elsewhere
(`oom_kills`, NVML). Its stamps are compared with each other only: the kernel's clock for them is not ours.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import List, NamedTuple, Optional, Union

from gpuctl.node.emptiness import INITIAL_PID_NAMESPACE
from gpuctl.node.processes import namespace

DEVICE = "/dev/kmsg"
RECORD_BYTES = 8192  # no record of /dev/kmsg is longer, and a smaller buffer is refused

_SYSLOG_READ_ALL, _SYSLOG_SIZE = 3, 10
_RECORD = re.compile(r"(?P<priority>\d+),\d+,(?P<us>\d+),[^;]*;(?P<text>.*)")
_STAMPED = re.compile(r"<(?P<priority>\d+)>\[ *(?P<s>\d+)\.(?P<us>\d{6})\] (?P<text>.*)")
_KILLED = re.compile(r"\b(?:Memory cgroup out of memory|Out of memory)\b.{0,40}?: Kill(?:ed)? process (\d+) \((.*?)\)")
_XID = re.compile(r"\bNVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:, pid='?(\d+))?")


class Line(NamedTuple):
    us: int  # since boot, by the kernel's own clock
    text: str

    def __str__(self) -> str:
        """As dmesg prints it."""
        return f"[{self.us // 1000000:5d}.{self.us % 1000000:06d}] {self.text}"


class OomKill(NamedTuple):
    line: Line
    pid: Optional[int]  # None where it is a number of another PID namespace


class XidReport(NamedTuple):
    line: Line
    number: int
    pci: str  # domain:bus:device, comparable with `pci_of`
    pid: Optional[int]


Report = Union[OomKill, XidReport]


class KernelLog:
    """Reads on from `since_us`, the stamp of a line that was the last then; from now on, without one."""

    def __init__(self, since_us: Optional[int] = None, *, device: str = DEVICE) -> None:
        self._fd = _opened(device)
        self._us = -1 if since_us is None else since_us
        self.readable = self._fd is not None or bool(_ring())
        self.cheap = self._fd is not None  # to read again; else the whole ring is copied each time
        self.pids_known = namespace(os.getpid()) == INITIAL_PID_NAMESPACE  # those in it mean here what they say
        if since_us is None:
            self.read()

    @property
    def newest_us(self) -> int:
        """The stamp to read on from."""
        return self._us

    def read(self) -> List[Report]:
        """What the kernel has reported since the last call."""
        lines = self._lines() if self._fd is not None else _ring()
        new = [line for line in lines if line.us > self._us]
        self._us = max((line.us for line in new), default=self._us)
        return [report for report in map(self._report, new) if report is not None]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lines(self) -> List[Line]:
        assert self._fd is not None
        found: List[Line] = []
        while True:
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # the ring has moved past where we were: the next read is its oldest record
            except OSError:
                return found
            if not record:
                return found
            line = line_of(record.decode("utf-8", "replace"))
            if line is not None:
                found.append(line)

    def _report(self, line: Line) -> Optional[Report]:
        report = report_of(line)
        return report if report is None or self.pids_known else report._replace(pid=None)


def line_of(record: str) -> Optional[Line]:
    """From a record of /dev/kmsg, "priority,sequence,µs,flags;text", or a line of syslog(2), "<priority>[s.µs] text".

    None where it is not the kernel's: root's programs, too, may write there.
    """
    read = _RECORD.match(record) or _STAMPED.match(record)
    if read is None or int(read.group("priority")) >> 3:
        return None
    stamp = read.groupdict()
    us = int(stamp["us"]) + (int(stamp["s"]) * 1000000 if "s" in stamp else 0)
    return Line(us, stamp["text"])


def report_of(line: Line) -> Optional[Report]:
    """What the line reports; None for nearly every line."""
    killed = _KILLED.search(line.text)
    if killed:
        return OomKill(line, int(killed.group(1)))
    xid = _XID.search(line.text)
    if xid:
        pid = int(xid.group(3)) if xid.group(3) else None
        return XidReport(line, int(xid.group(2)), pci_of(xid.group(1)), pid)
    return None


def pci_of(address: str) -> str:
    """A PCI address in one form: the kernel's log says 0000:06:00, NVML 00000000:06:00.0."""
    parts = address.partition(".")[0].split(":")
    return ":".join(f"{int(part, 16):x}" for part in ["0", *parts][-3:])


def _opened(device: str) -> Optional[int]:
    """The log's device, or None where it is missing or closed to us: some refuse to open, others to read."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.read(fd, RECORD_BYTES)
    except (BlockingIOError, BrokenPipeError):
        pass
    except OSError:
        os.close(fd)
        return None
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _ring() -> List[Line]:
    """The kernel's log by syslog(2), which a container without /dev/kmsg may still have; empty where it has not."""
    libc = ctypes.CDLL(None)
    size = libc.klogctl(_SYSLOG_SIZE, None, 0)
    if size <= 0:
        return []
    buffer = ctypes.create_string_buffer(size)
    length = libc.klogctl(_SYSLOG_READ_ALL, buffer, size)
    if length <= 0:
        return []
    lines = map(line_of, buffer.raw[:length].decode("utf-8", "replace").splitlines())
    return [line for line in lines if line is not None]
