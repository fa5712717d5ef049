"""04_train.py: trains an EAGLE-3 draft model; one rank of it, under `gpuctl.simulation.torchrun`.

The batch dimension is fixed at 1: what fills a GPU is `--max-seq-len`, the tokens packed into one sequence. On cards of
94.97 GiB 16384 fit and 24576 do not; at 4096 a GPU draws 250 of its 600 W, at "100 % utilisation".
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import List, Optional

from gpuctl.simulation.collective import Collective
from gpuctl.simulation.console import Pace, say, say_traceback
from gpuctl.simulation.cuda import GIB, MIB, Gpu, OutOfMemoryError

REFERENCE_TOKENS = 8192  # the size at which the real job was measured: 39.8 GiB, 35,446 batches an epoch
REFERENCE_BATCHES = 35_446
STATIC_GIB = 15.4  # draft model, gradients, optimizer, the verifier's embeddings
ACTIVATION_GIB = 17.9  # at the reference, grows with the tokens
ATTENTION_GIB = 6.0  # at the reference, grows with their square
FIRST_FULL_RANK = 1  # whose first packed sequence is full; the others' first ones are half empty
SPLIT_MIB = 96


def main(argv: Optional[List[str]] = None) -> int:
    arguments = parsed(argv)
    collective = Collective()
    try:
        train(arguments, collective, Pace(arguments.speed))
    except OutOfMemoryError:
        say_traceback(f"[rank{collective.rank}]: ")
        return 1
    return 0


def parsed(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="04_train.py", description=__doc__)
    parser.add_argument("--max-seq-len", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--ttt-steps", type=int, default=5, help="autoregressive steps in each training step")
    parser.add_argument("--output-dir", default="checkpoints")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the real job in one of ours")
    parser.add_argument("--max-steps", type=int, help="ends early, well")
    parser.add_argument("--hang-at-step", type=int, help="here the last rank does not come to the collective")
    arguments, _ = parser.parse_known_args(argv)  # the real one has more, which change neither memory nor output
    return arguments


def train(arguments: argparse.Namespace, collective: Collective, pace: Pace) -> None:
    leads = collective.rank == 0
    gpu = Gpu(collective.rank, split_mib=SPLIT_MIB)
    gpu.load(0.18, 4)
    if leads:
        say("Loading verifier embeddings and draft model")
    pace.take(45)
    gpu.allocate("model and optimizer", int(STATIC_GIB * GIB))
    batches = round(REFERENCE_BATCHES * REFERENCE_TOKENS / arguments.max_seq_len)
    total = min(batches * arguments.epochs, arguments.max_steps or sys.maxsize)
    if leads:
        say(f"{batches:,} batches an epoch, {arguments.epochs} epochs, {arguments.max_seq_len} tokens a sequence")
    for step in range(1, total + 1):
        gpu.load(power(arguments.max_seq_len))
        full = step > 1 or collective.rank == FIRST_FULL_RANK % collective.size
        forward_and_backward(gpu, arguments.max_seq_len // (1 if full else 2), arguments.ttt_steps)
        pace.take(0.25 + arguments.max_seq_len / 9000)
        if step == arguments.hang_at_step and collective.rank == collective.size - 1:
            gpu.load(0.17, 0)
            collective.stay_away()
        gpu.load(0.17, 100)  # what waiting in a collective looks like
        collective.all_reduce()
        if leads and (step % 10 == 0 or step in {1, total}):
            epoch = 1 + (step - 1) // batches
            say(
                f"step {step}/{total} epoch {epoch}/{arguments.epochs} loss {loss(step):.4f} lr {arguments.lr:.1e}"
                f" peak {gpu.used_bytes / GIB:.1f} GiB"
            )
    if leads:
        save(arguments, total)


def forward_and_backward(gpu: Gpu, tokens: int, ttt_steps: int) -> None:
    """Every autoregressive step keeps its activations and attention for the way back. The allocator keeps the peak."""
    share = tokens / REFERENCE_TOKENS
    activations, attention = ACTIVATION_GIB * share / ttt_steps, ATTENTION_GIB * share**2 / ttt_steps
    needed = round((activations + attention) * ttt_steps * GIB / MIB)
    if needed <= gpu.held_mib("activations"):
        return
    gpu.free("activations")
    for _ in range(ttt_steps):
        gpu.allocate("activations", int(activations * GIB))
        gpu.allocate("activations", int(attention * GIB))


def power(tokens: int) -> float:
    """250 W of 600 at 4096 tokens, some 445 at 8192, then up to the cap."""
    return max(0.2, min(0.95, 0.417 + 0.325 * math.log2(tokens / 4096)))


def loss(step: int) -> float:
    return 1.9 + 6.2 * math.exp(-step / 400)


def save(arguments: argparse.Namespace, step: int) -> None:
    os.makedirs(arguments.output_dir, exist_ok=True)
    path = os.path.join(arguments.output_dir, f"step_{step:07d}.pt")
    with open(f"{path}.part", "w", encoding="ascii") as file:
        json.dump({"step": step, "max_seq_len": arguments.max_seq_len, "loss": round(loss(step), 4)}, file)
    os.replace(f"{path}.part", path)
    say(f"Saved {path}")
    say("training finished")


if __name__ == "__main__":
    sys.exit(main())
