"""Every error that a person sees.

    GpuctlError               1   the thing asked about failed
    ├── UsageError            2   wrong usage
    │   └── BadFile           2   a broken inventory or job file: all of its faults at once
    ├── NotFound              3   no such run or node
    ├── Unreachable           4   a node can't be reached or refused us
    │   ├── AuthRefused       4
    │   ├── HostKeyUnknown    4
    │   ├── HostKeyChanged    4
    │   ├── ConnectionLost    4   cut in mid-stream: unreachable is never "failed"
    │   ├── DeadlinePassed    4
    │   │   └── CommandOverdue    4   it was started, and ended by us; what it said is kept
    │   └── NodeUnfit         4   reached, but something needed is missing there (no Python, a full disk)
    └── RefusedForSafety      5   `--force` overrides where it says so

Each has an exit code, what is wrong and where (`what`), and what to do about it (`hint`). A traceback is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass


class GpuctlError(Exception):
    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class UsageError(GpuctlError):
    exit_code = 2


@dataclass(frozen=True)
class Fault:
    """One fault of a file: where (`line` from 1, None where the whole file is meant), the dotted key, what is wrong."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line is not None else self.file
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class BadFile(UsageError):
    def __init__(self, faults: list[Fault], hint: str = "") -> None:
        super().__init__("\n".join(str(fault) for fault in faults), hint)
        self.faults = faults


class NotFound(GpuctlError):
    exit_code = 3


class Unreachable(GpuctlError):
    exit_code = 4


class AuthRefused(Unreachable): ...


class HostKeyUnknown(Unreachable): ...


class HostKeyChanged(Unreachable): ...


class ConnectionLost(Unreachable): ...


class DeadlinePassed(Unreachable): ...


class CommandOverdue(DeadlinePassed):
    def __init__(self, what: str, hint: str = "", *, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(what, hint)
        self.stdout, self.stderr = stdout, stderr


class NodeUnfit(Unreachable): ...


class RefusedForSafety(GpuctlError):
    exit_code = 5


BY_EXIT_CODE: dict[int, type[GpuctlError]] = {
    1: GpuctlError,
    2: UsageError,
    3: NotFound,
    4: NodeUnfit,
    5: RefusedForSafety,
}
"""The class for an error that a node answers, which names its exit code."""
