"""Where a test may end the program, exactly: named points of a run's life, so that no test has to win a race.

A point does nothing unless a file of its name lies in `<state_dir>/faults/`; the file says who dies (`self`, or a pid)
and is removed first, so that each fault happens once.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "attempt-forked",  # the job waits for the word, nothing is journaled
    "attempt-journaled",  # it is journaled, but was not told
    "attempt-told",
    "exit-seen",  # before attempt_exited
    "exit-journaled",
    "cleaned",  # before gpus_empty
    "relaunch-journaled",
    "archiving",  # before outputs are renamed as journaled
    "finish",  # before run_finished
)


def reach(state_dir: str, point: str) -> None:
    """Dies here if a test has asked for it."""
    path = os.path.join(state_dir, "faults", point)
    try:
        with open(path, encoding="ascii") as asked:
            who = asked.read().strip()
        os.unlink(path)
    except OSError:
        return
    os.kill(os.getpid() if who == "self" else int(who), signal.SIGKILL)
