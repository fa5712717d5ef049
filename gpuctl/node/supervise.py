"""Verb `supervise`: the supervisor's process, from the run's lock to its last words."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from gpuctl.node.attempt import Attempt
from gpuctl.node.folders import RunFolder, try_lock
from gpuctl.node.journal import DiskFull
from gpuctl.node.keeper import become_subreaper
from gpuctl.node.supervisor import Supervisor


def supervise(run_dir: str, secrets: Optional[Dict[str, str]]) -> Tuple[str, Optional[Supervisor]]:
    """Takes the run's lock and brings its journal up to the truth. `taken` where another supervisor lives."""
    run = RunFolder(run_dir)
    lock = try_lock(run.lock, patience_s=0.5)
    if lock is None:
        return "taken", None
    become_subreaper()
    supervisor = Supervisor(run, secrets)
    return supervisor.recover(), supervisor


def main(run_dir: str) -> int:
    """Says one word on stdout (see `keeper.start_supervisor`), then lives on with its descriptors let go."""
    order: Dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    try:
        word, supervisor = supervise(run_dir, order.get("secrets"))
    except DiskFull as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with contextlib.suppress(OSError):
        os.write(1, f"{'ended' if word == 'elsewhere' else word}\n".encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    if word != "watching" or supervisor is None:
        return 0
    try:
        supervisor.live()
    except DiskFull:
        return _last_words(supervisor)
    return 0


def _last_words(supervisor: Supervisor) -> int:
    """The disk is full, the reserve too: the job is stopped all the same; what can't be written is on stderr."""
    sys.stderr.write(f"{supervisor.run.path}: the disk is full, the journal could not be continued\n")
    open_attempt: List[Attempt] = []
    if supervisor.record.started is not None and supervisor.record.exited is None:
        open_attempt = [Attempt.of_event(supervisor.run, supervisor.record.started)]
    for attempt in open_attempt:
        supervisor.cleaning.end_quietly(attempt)
    return 1
