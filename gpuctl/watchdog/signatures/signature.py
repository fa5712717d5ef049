"""What a failure's wording looks like, and how much it proves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Optional, Tuple


class Weight(IntEnum):
    """How near to the root a line of this kind is. Of several, the heaviest is the root; of equals, the first."""

    PROBE = 0  # a program trying how far it gets: proves nothing unless it then fails of it
    LAUNCHER = 1  # somebody reports that another process failed
    CONSEQUENCE = 2  # a fault that other faults like to end in: a lost peer, any exception
    CAUSE = 3  # names what went wrong


@dataclass(frozen=True)
class Signature:
    """`words`: lower-case literals, one of which every match contains; they are looked for before the pattern is tried.

    `reduce`: whether a smaller batch cures it, where the wording says so; None leaves it to the class. `phase` likewise.
    `scope` is what failed: the process, or only a request (a prompt, one sample of a server), or nothing yet (a finding
    about a job that goes on, as a NaN loss). `bold`: evidence at any log level; others count as a hint below ERROR.
    """

    cls: str
    pattern: "re.Pattern[str]"
    words: Tuple[str, ...]
    weight: Weight = Weight.CAUSE
    reduce: Optional[bool] = None
    phase: Optional[str] = None
    scope: str = "process"
    bold: bool = False


def signature(
    cls: str,
    source: str,
    words: str,
    weight: Weight = Weight.CAUSE,
    *,
    reduce: Optional[bool] = None,
    phase: Optional[str] = None,
    scope: str = "process",
    bold: bool = False,
) -> Signature:
    """`words` are separated by `|`; the pattern ignores case."""
    pattern = re.compile(source, re.IGNORECASE)
    return Signature(cls, pattern, tuple(words.split("|")), weight, reduce, phase, scope, bold)
