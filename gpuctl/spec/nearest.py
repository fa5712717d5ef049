"""\"Did you mean\": the known name that a wrong one resembles."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` resembles most, None where none does. Case and `-` for `_` count as nothing."""
    folded = {each.casefold().replace("-", "_"): each for each in known}
    near = difflib.get_close_matches(name.casefold().replace("-", "_"), folded, n=1)
    return folded[near[0]] if near else None


def suggestion(name: str, known: Iterable[str], *, kind: str) -> str:
    """A clause for a message: the nearest name, else all that are known."""
    choices = sorted(known)
    near = nearest(name, choices)
    if near is not None:
        return f"did you mean {near}?"
    return f"{kind}: {', '.join(choices)}" if choices else f"{kind}: none"
