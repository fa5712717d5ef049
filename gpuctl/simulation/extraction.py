"""02_extract_hidden_states.py: runs the verifier over the data set and saves its hidden states.

Loading takes 22 minutes of the job's time; then 91 of 94.97 GiB are taken on each of eight GPUs. `--batch-size` is
samples per forward pass: 4 fit well, 31 just so, and 2000, meant as the total, ask for everything at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import List, Optional

from gpuctl.simulation import model
from gpuctl.simulation.console import Bar, Pace, say, stamp
from gpuctl.simulation.vllm import Engine


def main(argv: Optional[List[str]] = None) -> int:
    arguments = parsed(argv)
    pace = Pace(arguments.speed)
    lengths = model.sample_lengths(arguments.num_samples, arguments.max_seq_len)
    say(f"Loaded {len(lengths):,} samples, {sum(lengths):,} tokens")
    say(f"INFO {stamp()} [__init__.py:216] Automatically detected platform cuda.")
    say(f"INFO {stamp()} [model.py:1510] Using max model len {arguments.max_seq_len}")
    engine = Engine(arguments.max_seq_len, pace)
    extract(engine, lengths, arguments, pace)
    engine.close()
    say(f"Saved hidden states of {len(lengths):,} samples ({sum(lengths):,} tokens) to {arguments.output_dir}")
    return 0


def parsed(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="02_extract_hidden_states.py", description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4, help="samples per forward pass")
    parser.add_argument("--max-seq-len", type=int, default=2048)
    parser.add_argument("--num-samples", type=int, default=model.SAMPLES)
    parser.add_argument("--output-dir", default="hidden_states")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the real job in one of ours")
    return parser.parse_args(argv)


def extract(engine: Engine, lengths: List[int], arguments: argparse.Namespace, pace: Pace) -> None:
    """All samples in batches; what each batch gave is a file of its own."""
    os.makedirs(arguments.output_dir, exist_ok=True)
    batches = range(0, len(lengths), arguments.batch_size)
    bar = Bar("Extracting hidden states", len(batches), pace)
    for first in batches:
        batch = lengths[first : first + arguments.batch_size]
        engine.forward(arguments.batch_size, arguments.max_seq_len, sum(batch))
        save(arguments.output_dir, first, batch)
        bar.advance()


def save(folder: str, first: int, lengths: List[int]) -> None:
    """Written aside and renamed, so that an ended job leaves no half file."""
    path = os.path.join(folder, f"samples_{first:05d}-{first + len(lengths) - 1:05d}.json")
    shapes = {str(first + offset): [4, length, model.HIDDEN] for offset, length in enumerate(lengths)}
    with open(f"{path}.part", "w", encoding="ascii") as file:
        json.dump(shapes, file)
    os.replace(f"{path}.part", path)


if __name__ == "__main__":
    sys.exit(main())
