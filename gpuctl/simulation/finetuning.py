"""finetune.py: finetunes a classifier on video clips, which its data loader's workers decode.

16 workers decode as fast as the GPU computes; with one the GPU waits nearly all of the time. Each worker caches what it
has decoded, up to 9 GiB: 16 of them fill the machine's 128 GiB, and then the kernel kills one.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from typing import List, Optional

from gpuctl.simulation.console import Pace, say, say_traceback
from gpuctl.simulation.cuda import GIB, Gpu
from gpuctl.simulation.devices import FOLDER_VARIABLE, SimulatedGpus

BATCH = 8
COMPUTE_S = 0.2  # a batch, on the GPU
DECODE_S = 0.4  # a clip, in one worker: BATCH / 16 workers take as long as the GPU
MODEL_GIB = 21.5
WAITING, COMPUTING = 0.17, 0.8  # of the power limit
HOST_GIB = 128.0
OWN_GIB = 14.0  # of it, what the main process and the system take
CACHE_GIB = 9.0  # of a worker
CLIP_MIB = 24.0  # decoded, in a cache


def main(argv: Optional[List[str]] = None) -> int:
    arguments = parsed(argv)
    try:
        train(arguments, Loader(arguments.num_workers), Pace(arguments.speed))
    except RuntimeError:
        say_traceback()
        return 1
    return 0


def parsed(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="finetune.py", description=__doc__)
    parser.add_argument("--num-workers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the real job in one of ours")
    return parser.parse_args(argv)


class Loader:
    """The workers are real processes. They end with the main process: it holds the other end of their pipe."""

    def __init__(self, count: int) -> None:
        ours, theirs = os.pipe()
        self.pids = [_worker(ours, theirs) for _ in range(count)]
        os.close(ours)
        self._end = theirs
        self._clips = 0

    def deliver(self, clips: int) -> None:
        """So many clips more. The kernel has its say about the memory that they take."""
        self._clips += clips
        if self.host_gib > HOST_GIB:
            self._killed_by_the_kernel()

    @property
    def host_gib(self) -> float:
        cached = self._clips / len(self.pids) * CLIP_MIB / 1024
        return OWN_GIB + len(self.pids) * min(CACHE_GIB, cached)

    def _killed_by_the_kernel(self) -> None:
        """A real SIGKILL, in the kernel's stead, and counted as its own; what PyTorch says of dead workers then."""
        SimulatedGpus(os.environ[FOLDER_VARIABLE]).note_oom_kill()
        pid = self.pids[-1]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise RuntimeError(f"DataLoader worker (pid {pid}) is killed by signal: Killed. ")


def _worker(ours: int, theirs: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)  # until the main process is gone
        os._exit(0)
    return pid


def train(arguments: argparse.Namespace, loader: Loader, pace: Pace) -> None:
    gpu = Gpu(0)
    gpu.load(WAITING, 2)
    say(f"Loading model weights; {arguments.num_workers} data loader workers")
    pace.take(30)
    gpu.allocate("model and optimizer", int(MODEL_GIB * GIB))
    decoding_s = BATCH * DECODE_S / arguments.num_workers
    step_s = max(COMPUTE_S, decoding_s)
    # Copies of what has come keep the GPU "busy": utilisation says nothing about how much it computes.
    gpu.load(WAITING + (COMPUTING - WAITING) * COMPUTE_S / step_s, 99)
    for step in range(1, arguments.steps + 1):
        pace.take(step_s)
        loader.deliver(BATCH)
        if step % 10 == 0 or step in {1, arguments.steps}:
            say(
                f"step {step}/{arguments.steps} loss {3.1 * math.exp(-step / 700) + 0.4:.4f}"
                f" data {step_s - COMPUTE_S:.2f}s compute {COMPUTE_S:.2f}s"
                f" host memory {loader.host_gib:.1f} of {HOST_GIB:.0f} GiB"
            )
    say("training finished")


if __name__ == "__main__":
    sys.exit(main())
