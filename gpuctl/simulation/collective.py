"""A collective of ranks: a ring of pipes in which each waits for all, as in an all-reduce.

As with NCCL, a rank that is gone is not noticed by the others: they wait, for ever, with a spinning kernel.
"""

from __future__ import annotations

import os
import signal
from typing import List, Tuple

RING_VARIABLE = "SIMULATED_RING"
"""A rank's two descriptors: from the one before it, to the one after it."""


def ring(count: int) -> List[Tuple[int, int]]:
    """Each rank's descriptors, to be inherited and then closed by whoever started them."""
    pipes = [os.pipe() for _ in range(count)]
    return [(pipes[rank - 1][0], pipes[rank][1]) for rank in range(count)]


class Collective:
    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        before, after = os.environ.get(RING_VARIABLE, "-1,-1").split(",")
        self._before, self._after = int(before), int(after)

    def all_reduce(self) -> None:
        """Returns when every rank has come here; never, if one is gone."""
        for _ in range(self.size - 1):
            try:
                os.write(self._after, b".")
            except BrokenPipeError:
                self._wait_for_ever()
            if not os.read(self._before, 1):
                self._wait_for_ever()

    def stay_away(self) -> None:
        """This rank waits for something else, and the others in vain for it."""
        self._wait_for_ever()

    @staticmethod
    def _wait_for_ever() -> None:
        while True:
            signal.pause()
