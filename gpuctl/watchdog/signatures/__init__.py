"""Every wording of a failure that we know, and the search for it in one line.

The tables are grouped by who writes the line. Order decides where a line fits several: what is specific stands first.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from gpuctl.watchdog.signatures import collectives, devices, hosts, memory, programs
from gpuctl.watchdog.signatures.signature import Signature, Weight

__all__ = ["STEMS", "TABLE", "Signature", "Weight", "find", "says_handled"]

TABLE: Tuple[Signature, ...] = (
    memory.KV_CACHE + memory.AT_LOAD + memory.GPU + hosts.TABLE + devices.TABLE + collectives.TABLE + programs.TABLE
)

_NO_EVIDENCE = re.compile(
    r"\b(?:PASSED|XFAIL|XPASS|SKIPPED)\b"  # a test about failures
    r"|\b(?:prompt|messages|content|completion|output_text|question|answer)['\"]?\s?[:=]\s?['\"\[]"  # somebody's words, passing through
    r"|^(?:if|when|in case|note:|hint:|tip:|help:|see|to (?:avoid|fix|prevent))\b|^\s*(?:-{1,2}[a-z][\w-]* |# |//|\* )"  # advice, help texts, comments
    r"|\b(?:would|could|might|may|will not) (?:cause|lead to|result in|trigger|hit)\b.{0,40}\b(?:oom|out of memory|memory)\b",
    re.IGNORECASE,
)
_HANDLED = re.compile(
    r"\b(?:re-?try(?:ing)?(?: with| in| after|\b(?! count))|will retry|try(?:ing)? (?:again|batch size)|using (?:the )?cpu|fall(?:ing)?[- ]?(?:ing )?back|fallback|skipp(?:ed|ing)|ignor(?:ed|ing)|recover(?:ed|ing)"
    r"|reducing|continuing|caught)\b(?! (?:count|budget|exhausted))",
    re.IGNORECASE,
)


def find(text: str) -> Optional[Signature]:
    """The first signature that the line fits, None for nearly every line."""
    lowered = text.lower()
    for signature in TABLE:
        for word in signature.words:
            if word in lowered:
                if signature.pattern.search(text):
                    return None if _NO_EVIDENCE.search(text) else signature
                break
    return None


def says_handled(text: str) -> bool:
    """Does the line itself say that the program deals with it (retries, skips, goes on on the CPU)?"""
    return bool(_HANDLED.search(text))


STEMS = (
    b"memory", b"error", b"exce", b"fail", b"kill", b"nan", b"xid", b"traceback",
)  # fmt: skip
"""One of them is in every line that matters: what the bulk of a log is searched for."""
