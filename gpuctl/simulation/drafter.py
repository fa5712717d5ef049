"""train_dflash.py: trains a DFlash drafter. Five GPUs run the target's forward passes, the last one the drafter.

Each logits tensor holds anchors × block size positions of 248,320 values. 512 anchors in blocks of 16 fit; 1,024 in
blocks of 24 do not, and then the drafter's thread dies while the process lives: its targets go on until the queue
between them is full, and wait for ever.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import sys
import threading
import time
from typing import List, Optional

from gpuctl.simulation.console import Pace, say
from gpuctl.simulation.cuda import GIB, Gpu

TARGET_GPUS = 5
VOCABULARY = 248_320
TARGET_BYTES = int(61.3 * GIB)  # the target model's share of each of its GPUs
DRAFTER_BYTES = {"model": 3_500_000_000, "gradients": 3_500_000_000, "optimizer": 14_000_000_000}
SPLIT_MIB = 64
QUEUE_SLOTS = 16
TARGET_S = 0.8  # one forward pass of the target
WAITING_EVERY_S = 30.0


def main(argv: Optional[List[str]] = None) -> int:
    arguments = parsed(argv)
    pace = Pace(arguments.speed)
    greet()
    last = arguments.gpus - 1
    targets = [Gpu(number) for number in range(TARGET_GPUS)]
    for number, gpu in enumerate(targets):
        gpu.load(0.18, 3)
        gpu.allocate("target", TARGET_BYTES)
        pace.take(14)
        say(f"target shard {number} on cuda:{number}")
    ready: queue.Queue[int] = queue.Queue(QUEUE_SLOTS)
    drafter = threading.Thread(target=draft, args=(ready, last, arguments, pace), name="drafter-0", daemon=True)
    drafter.start()
    run_targets(targets, ready, arguments.steps, pace)
    drafter.join()
    say("wandb: Waiting for W&B process to finish... (success).")
    return 0


def parsed(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_dflash.py", description=__doc__)
    parser.add_argument("--anchors", type=int, default=512)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=8, help="the drafter has the last one")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the real job in one of ours")
    return parser.parse_args(argv)


def greet() -> None:
    run = os.environ.get("WANDB_RUN_ID", "dflash")
    folder = time.strftime(f"wandb/run-%Y%m%d_%H%M%S-{run}")
    say("wandb: Tracking run with wandb version 0.21.3")
    say(f"wandb: Run data is saved locally in {folder}")
    say("wandb: Run `wandb offline` to turn off syncing.")
    say(f"wandb: Syncing run {run}")


def run_targets(targets: List[Gpu], ready: queue.Queue[int], steps: int, pace: Pace) -> None:
    """Hidden states for the drafter, as fast as it takes them."""
    for step in range(1, steps + 1):
        for gpu in targets:
            gpu.load(0.66)
        pace.take(TARGET_S)
        while True:
            try:
                ready.put(step, timeout=WAITING_EVERY_S / pace.speed)
                break
            except queue.Full:
                for gpu in targets:
                    gpu.load(0.17, 0)
                say(f"target: queue full ({QUEUE_SLOTS}/{QUEUE_SLOTS}), waiting for drafter")


def draft(ready: queue.Queue[int], number: int, arguments: argparse.Namespace, pace: Pace) -> None:
    gpu = Gpu(number, split_mib=SPLIT_MIB)
    for what, size_bytes in DRAFTER_BYTES.items():
        gpu.allocate(what, size_bytes)
    positions = arguments.anchors * arguments.block_size
    say(f"drafter: {arguments.anchors} anchors × block {arguments.block_size} = {positions} positions on cuda:{number}")
    for _ in range(arguments.steps):
        step = ready.get()
        compute_loss(gpu, positions)
        gpu.load(0.8)
        pace.take(positions / 8000)
        if step == 1 or step % 10 == 0 or step == arguments.steps:
            loss, accepted = 2.1 + 5 * math.exp(-step / 300), step / (step + 90)
            say(f"step {step}/{arguments.steps} loss {loss:.4f} accept {accepted:.3f}")


def compute_loss(gpu: Gpu, positions: int) -> None:
    """Logits in bf16, then in fp32 three times over: the upcast, its softmax, its gradient. The peak stays cached."""
    if gpu.held_mib("logits"):
        return
    logits = positions * VOCABULARY * 2
    gpu.allocate("logits", logits)
    for _ in ("upcast", "log softmax", "gradient"):
        gpu.allocate("logits", 2 * logits)


if __name__ == "__main__":
    sys.exit(main())
