"""torchrun: starts the ranks of one node, watches them, and ends all when one fails.

    python3 -m gpuctl.simulation.torchrun --nproc_per_node=4 gpuctl.simulation.training --max-seq-len 16384 …

The ranks are joined in a ring of pipes in place of NCCL (`gpuctl.simulation.collective`).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import Dict, List, NoReturn, Optional

from gpuctl.simulation.collective import RING_VARIABLE, ring
from gpuctl.simulation.console import say

RUN_PLACE = "torch/distributed/run.py:851"
PROCESSES_PLACE = "torch/distributed/elastic/multiprocessing/api.py"
AGENT_PLACE = "torch/distributed/elastic/agent/server/api.py:739"
STARS = "*" * 41
OMP_NOTE = (
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being"
    " overloaded, please further tune the variable for optimal performance in your application as needed. "
)
CLOSING_GRACE_S = 30.0
MONITOR_INTERVAL_S = 0.1


class ChildFailedError(Exception):
    """A rank failed: the launcher's summary is its text."""


class SignalException(Exception):
    """The launcher itself was told to end."""


ChildFailedError.__module__ = "torch.distributed.elastic.multiprocessing.errors"
SignalException.__module__ = "torch.distributed.elastic.multiprocessing.api"


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="torchrun", description=__doc__)
    parser.add_argument("--nproc_per_node", "--nproc-per-node", type=int, default=1)
    parser.add_argument("module", help="what each rank runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _told_to_end)
    for line in ("", STARS, OMP_NOTE, STARS):
        say(line, stamped("W", RUN_PLACE))
    ranks = start(arguments.module, arguments.arguments, arguments.nproc_per_node)
    try:
        failed = watch(ranks)
    except SignalException:
        say("Received 15 death signal, shutting down workers", stamped("W", AGENT_PLACE))
        close(ranks)
        raise
    if failed is None:
        return 0
    ended = time.strftime("%Y-%m-%d_%H:%M:%S")
    close(ranks)
    rank = ranks[failed]
    say(
        f"failed (exitcode: {rank.returncode}) local_rank: {failed} (pid: {rank.pid}) of binary: {sys.executable}",
        stamped("E", f"{PROCESSES_PLACE}:986"),
    )
    raise ChildFailedError(summary(arguments.module, ranks, failed, ended))


def start(module: str, arguments: List[str], count: int) -> List[subprocess.Popen[bytes]]:
    ranks = []
    links = ring(count)
    for rank, link in enumerate(links):
        environ: Dict[str, str] = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            RING_VARIABLE: ",".join(str(descriptor) for descriptor in link),
        }
        argv = [sys.executable, "-m", module, *arguments]
        ranks.append(subprocess.Popen(argv, env=environ, pass_fds=link, start_new_session=True))
    for link in links:
        for descriptor in link:
            os.close(descriptor)
    return ranks


def watch(ranks: List[subprocess.Popen[bytes]]) -> Optional[int]:
    """The first rank found failed; None when all have ended well."""
    while True:
        codes = [rank.poll() for rank in ranks]
        for number, code in enumerate(codes):
            if code:
                return number
        if all(code == 0 for code in codes):
            return None
        time.sleep(MONITOR_INTERVAL_S)


def close(ranks: List[subprocess.Popen[bytes]]) -> None:
    """TERM to those that live, KILL after the grace."""
    living = [rank for rank in ranks if rank.poll() is None]
    for rank in living:
        say(f"Sending process {rank.pid} closing signal SIGTERM", stamped("W", f"{PROCESSES_PLACE}:1012"))
        rank.terminate()
    deadline = time.monotonic() + CLOSING_GRACE_S
    for rank in living:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def summary(module: str, ranks: List[subprocess.Popen[bytes]], root: int, ended: str) -> str:
    """Others first, the root cause last, as the real one has them."""
    others = [number for number, rank in enumerate(ranks) if number != root and rank.returncode]
    failures = [entry(position, ranks[number], number, ended) for position, number in enumerate(others, start=1)]
    lines = [
        "",
        "=" * 60,
        f"{module} FAILED",
        "-" * 60,
        "Failures:",
        *(failures or ["  <NO_OTHER_FAILURES>"]),
        "-" * 60,
        "Root Cause (first observed failure):",
        entry(0, ranks[root], root, ended),
        "=" * 60,
    ]
    return "\n".join(lines)


def entry(position: int, rank: subprocess.Popen[bytes], number: int, ended: str) -> str:
    if rank.returncode < 0:
        name = signal.Signals(-rank.returncode).name
        why = f"Signal {-rank.returncode} ({name}) received by PID {rank.pid}"
    else:
        why = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    return (
        f"[{position}]:\n"
        f"  time      : {ended}\n"
        f"  host      : {socket.gethostname()}\n"
        f"  rank      : {number} (local_rank: {number})\n"
        f"  exitcode  : {rank.returncode} (pid: {rank.pid})\n"
        f"  error_file: <N/A>\n"
        f"  traceback : {why}"
    )


def stamped(level: str, place: str) -> str:
    """The launcher's prefix: `W1129 15:47:01.845000 681 torch/distributed/run.py:851] `"""
    now = time.time()
    clock = f"{time.strftime('%m%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}000"
    return f"{level}{clock} {os.getpid()} {place}] "


def _told_to_end(number: int, frame: Optional[FrameType]) -> NoReturn:
    raise SignalException(f"Process {os.getpid()} got signal: {number}")


if __name__ == "__main__":
    sys.exit(main())
