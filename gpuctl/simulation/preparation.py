"""01_prepare_dataset.py: downloads the data set and tokenizes it. Uses no GPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import List, Optional

from gpuctl.simulation import model
from gpuctl.simulation.console import Bar, Pace, say


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="01_prepare_dataset.py", description=__doc__)
    parser.add_argument("--num-samples", type=int, default=model.SAMPLES)
    parser.add_argument("--max-seq-len", type=int, default=2048)
    parser.add_argument("--num-proc", type=int, default=8)
    parser.add_argument("--output-dir", default="dataset")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the real job in one of ours")
    arguments = parser.parse_args(argv)
    pace = Pace(arguments.speed)
    bar = Bar("Downloading data", 4, pace, unit="files")
    for _ in range(4):
        pace.take(11)
        bar.advance()
    lengths = model.sample_lengths(arguments.num_samples, arguments.max_seq_len)
    bar = Bar(f"Map (num_proc={arguments.num_proc})", len(lengths), pace, unit=" examples")
    for first in range(0, len(lengths), 100):
        pace.take(6)
        bar.advance(len(lengths[first : first + 100]))
    os.makedirs(arguments.output_dir, exist_ok=True)
    path = os.path.join(arguments.output_dir, "dataset.json")
    with open(f"{path}.part", "w", encoding="ascii") as file:
        json.dump({"samples": len(lengths), "tokens": sum(lengths), "lengths": lengths}, file)
    os.replace(f"{path}.part", path)
    say(f"Saved {len(lengths):,} samples, {sum(lengths):,} tokens to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
