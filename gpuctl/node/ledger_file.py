"""`ledger.jsonl` in the state folder. All supervisors of a user append to it, under a lock on the file itself; a line
that was cut off by a power cut hides none of its neighbours.

It is read whole at each decision, so it does not grow for ever: of old entries only the last word on each combination
of values stays.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Dict, List, Optional, Tuple

from gpuctl.node import deadline
from gpuctl.node.folders import StateFolder
from gpuctl.wire.ledger import LedgerEntry

LOCKED_S = 5.0  # that another one may take for its line
MOST_BYTES = 8 << 20  # some 20 000 entries; the newer half of it stays whole
ASIDE = ".new"


def append(state: StateFolder, entry: LedgerEntry) -> None:
    """One more line, on the disk when this returns. Raises OSError; then nothing of it was written."""
    line = _line(entry)
    fd = _locked(state.ledger)
    try:
        end = os.fstat(fd).st_size
        if end and os.pread(fd, 1, end - 1) != b"\n":
            line = b"\n" + line
        try:
            written = os.write(fd, line)
            if written < len(line):
                raise OSError(f"{state.ledger}: only {written} of {len(line)} bytes were written")
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, end)
            raise
        if end + len(line) > MOST_BYTES:
            with contextlib.suppress(OSError):  # no room for the shorter one beside it: the next may have it
                _shorten(state)
    finally:
        os.close(fd)


def read(state: StateFolder, job: Optional[str] = None) -> List[LedgerEntry]:
    """All entries in their order, or one job's. Of an attempt that was entered twice, the later."""
    try:
        with open(state.ledger, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found: Dict[Tuple[str, int], LedgerEntry] = {}
    for line in lines:
        entry = _parse(line)
        if entry is not None and (job is None or entry.job == job):
            found[(entry.run, entry.attempt)] = entry
    return list(found.values())


def _locked(path: str) -> int:
    """A descriptor of the file that has this name now: while one waits for the lock, another may put a shorter file
    in its place."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            deadline.lock(fd, LOCKED_S)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def _shorten(state: StateFolder) -> None:
    """The newer half as it is; of what is older the last word on each combination of values, as far as it takes no
    more than half as much."""
    kept: List[bytes] = []
    said = set()
    whole, sparse = MOST_BYTES // 2, MOST_BYTES // 4
    for entry in reversed(read(state)):
        line = _line(entry)
        about = (entry.job, entry.template, entry.model, entry.count, json.dumps(entry.params), entry.too_big)
        if whole > 0:
            whole -= len(line)
        elif about in said or len(line) > sparse:
            continue
        else:
            sparse -= len(line)
        said.add(about)
        kept.append(line)
    aside = state.ledger + ASIDE
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.writelines(reversed(kept))
        file.flush()
        os.fsync(file.fileno())
    os.rename(aside, state.ledger)


def _line(entry: LedgerEntry) -> bytes:
    return json.dumps(entry.to_json()).encode("ascii") + b"\n"


def _parse(line: bytes) -> Optional[LedgerEntry]:
    """None for what no supervisor wrote."""
    try:
        return LedgerEntry.from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
