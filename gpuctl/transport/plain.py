"""argv in plain words, for ways that would mangle others.

`pct exec` rebuilds its argv in Perl, which spoils what is not ASCII. An SSH command is one string for the user's login
shell: fish and csh read quotes, backslashes, `!` and newlines in their own way, and bytes that are no UTF-8 have no
place in it. So such characters travel as octal escapes, and a POSIX shell at the far end turns them back by printf.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

# Without a quote, backslash or `!` of its own. The dot keeps newlines at a word's end, which $( ) would take away.
DECODE = 'for word do shift; word=$(printf %b. "$word"); set -- "$@" "${word%.}"; done; exec "$@"'

_RISKY = frozenset(b"\\'!")


def escaped(word: str) -> str:
    """A plain word that `printf %b` turns back into this one."""
    # Invalid UTF-8 is in a str as lone surrogates (PEP 383), and comes out as the bytes that it was.
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in _RISKY else f"\\0{byte:03o}" for byte in os.fsencode(word)
    )


def as_plain(argv: Sequence[str]) -> list[str]:
    """argv itself where it is ASCII; else one that becomes it in a POSIX shell."""
    if all(word.isascii() for word in argv):
        return list(argv)
    return ["sh", "-c", DECODE, "sh", *map(escaped, argv)]
