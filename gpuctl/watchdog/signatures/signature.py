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

    `reduce`: whether a smaller batch cures it, where the wording says so; None leaves it to the class.
    `phase`: where the wording says it. `scope`: "process" is what failed, or "finding", about a job that goes on.
    `bold`: evidence at any log level; others are only a hint where the line calls itself a warning or less.
    """

    cls: str
    words: Tuple[str, ...]
    pattern: "re.Pattern[str]"
    weight: Weight = Weight.CAUSE
    reduce: Optional[bool] = None
    phase: Optional[str] = None
    scope: str = "process"
    bold: bool = False


def signature(
    cls: str,
    words: str,
    *wordings: str,
    weight: Weight = Weight.CAUSE,
    reduce: Optional[bool] = None,
    phase: Optional[str] = None,
    scope: str = "process",
    bold: bool = False,
) -> Signature:
    """`words` are separated by spaces, a blank inside one is written `_`; `wordings` are alternatives, in any case."""
    literals = tuple(word.replace("_", " ") if not word.startswith("=") else word[1:] for word in words.split())
    pattern = re.compile("|".join(wordings), re.IGNORECASE)
    return Signature(cls, literals, pattern, weight, reduce, phase, scope, bold)
