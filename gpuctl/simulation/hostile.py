"""A job that does not want to end: what the reaper must be able to end all the same.

Its processes ignore TERM, INT and HUP and hold GPU memory. One is a plain child, one has a session of its own, one is
an orphan (double fork), one is an orphan with a session of its own and an empty environment, and one forks a successor
every few milliseconds and exits, so that each look at it finds another pid.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Callable, List, Optional

from gpuctl.simulation.console import say
from gpuctl.simulation.devices import FOLDER_VARIABLE, Context, SimulatedGpus, visible

GENERATION_S = 0.01
KEPT: List[Context] = []


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=600.0, help="then all of it ends by itself")
    parser.add_argument("--bare", metavar="FOLDER", help="be the one without environment (used by itself)")
    parser.add_argument("--gpu", type=int, default=0)
    arguments = parser.parse_args(argv)
    deadline = time.monotonic() + arguments.seconds
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if arguments.bare:
        hold(arguments.bare, arguments.gpu, arguments.mib, "bare")
        linger(deadline)
        return 0
    folder = os.environ[FOLDER_VARIABLE]
    gpu = visible(os.environ, SimulatedGpus(folder))[0]
    hold(folder, gpu, arguments.mib, "top")
    branch(lambda: named("child", deadline))
    branch(lambda: named("session", deadline), session=True)
    branch(lambda: named("orphan", deadline), orphan=True)
    branch(lambda: become_bare(folder, gpu, arguments), session=True, orphan=True)
    branch(lambda: breed(deadline), orphan=True)
    linger(deadline)
    return 0


def hold(folder: str, gpu: int, mib: int, name: str) -> None:
    """A context that this process and its children keep for life."""
    KEPT.append(Context(SimulatedGpus(folder), gpu, mib))
    say(f"hostile: {name} {os.getpid()} holds {mib} MiB on GPU {gpu}")


def branch(life: Callable[[], None], *, session: bool = False, orphan: bool = False) -> None:
    """Lives `life` in a child: in a session of its own, or with its parent gone."""
    pid = os.fork()
    if pid:
        if orphan:
            os.waitpid(pid, 0)
        return
    if session:
        os.setsid()
    if orphan and os.fork():
        os._exit(0)
    life()
    os._exit(0)


def named(name: str, deadline: float) -> None:
    say(f"hostile: {name} {os.getpid()}")
    linger(deadline)


def become_bare(folder: str, gpu: int, arguments: argparse.Namespace) -> None:
    """As `env -i` does; where the modules are is all that it keeps."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    argv = [sys.executable, "-m", "gpuctl.simulation.hostile", "--bare", folder, "--gpu", str(gpu)]
    argv += ["--mib", str(arguments.mib), "--seconds", str(arguments.seconds)]
    os.execve(sys.executable, argv, {"PYTHONPATH": root})  # noqa: S606  (exactly this argv, no shell)


def breed(deadline: float) -> None:
    say(f"hostile: breeder {os.getpid()}")
    while time.monotonic() < deadline:
        if os.fork():
            os._exit(0)
        time.sleep(GENERATION_S)


def linger(deadline: float) -> None:
    while time.monotonic() < deadline:
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


if __name__ == "__main__":
    sys.exit(main())
