"""03_build_vocab_mapping.py: the 32,000 of 163,840 tokens that the draft model predicts. Uses no GPU."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import List, Optional

from gpuctl.simulation import model
from gpuctl.simulation.console import Bar, Pace, say


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="03_build_vocab_mapping.py", description=__doc__)
    parser.add_argument("--target-vocab-size", type=int, default=163_840)
    parser.add_argument("--draft-vocab-size", type=int, default=32_000)
    parser.add_argument("--output-dir", default="vocab_mapping")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the real job in one of ours")
    arguments = parser.parse_args(argv)
    pace = Pace(arguments.speed)
    bar = Bar("Counting tokens", model.SAMPLES, pace, unit="samples")
    for _ in range(0, model.SAMPLES, 50):
        pace.take(1.5)
        bar.advance(50)
    covered = coverage(arguments.draft_vocab_size, arguments.target_vocab_size)
    say(f"{arguments.draft_vocab_size:,} of {arguments.target_vocab_size:,} tokens cover {covered:.2%} of the data")
    os.makedirs(arguments.output_dir, exist_ok=True)
    path = os.path.join(arguments.output_dir, "vocab_mapping.json")
    with open(f"{path}.part", "w", encoding="ascii") as file:
        json.dump({"draft": arguments.draft_vocab_size, "target": arguments.target_vocab_size}, file)
    os.replace(f"{path}.part", path)
    say(f"Saved {path}")
    return 0


def coverage(draft: int, target: int) -> float:
    """Of a text whose token frequencies fall off as 1/rank."""
    return math.log(1 + draft) / math.log(1 + target)


if __name__ == "__main__":
    sys.exit(main())
