"""Holds memory on simulated GPUs until it is ended: the plainest job there is, for trials of cleaning and leases."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import List, Optional

from gpuctl.simulation.devices import FOLDER_VARIABLE, Context, DeviceFull, SimulatedGpus, visible


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="hold", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="on each GPU")
    parser.add_argument("--power", type=float, default=0.17, help="a share of the power limit")
    parser.add_argument("--utilisation", type=int, default=0, help="percent")
    parser.add_argument("--seconds", type=float, default=3600.0, help="then it ends by itself")
    parser.add_argument("--fork", action="store_true", help="a child keeps the memory when this process is gone")
    parser.add_argument("--ignore-term", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gpus = SimulatedGpus(os.environ[FOLDER_VARIABLE])
    try:
        contexts = [Context(gpus, index, arguments.mib) for index in visible(os.environ, gpus)]
    except DeviceFull as full:
        print(full, file=sys.stderr)
        return 1
    for context in contexts:
        context.load(arguments.power, arguments.utilisation)
    if arguments.fork:
        os.fork()
    indices = ", ".join(str(context.index) for context in contexts)
    print(f"holding {arguments.mib} MiB on GPU {indices}", flush=True)
    time.sleep(arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
