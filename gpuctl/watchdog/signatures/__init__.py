"""Every wording of a failure that we know, and the search for it in one line.

The tables are grouped by who writes the line. Order decides where a line fits several: what is specific stands first.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from gpuctl.watchdog.signatures import collectives, devices, hosts, memory, programs
from gpuctl.watchdog.signatures.signature import Signature, Weight

__all__ = ["STEMS", "TABLE", "Signature", "Weight", "find", "says_handled"]

TABLE: Tuple[Signature, ...] = memory.TABLE + hosts.TABLE + devices.TABLE + collectives.TABLE + programs.TABLE

_NO_EVIDENCE = re.compile(
    "|".join((
        r"\b(?:PASSED|XFAIL|XPASS|SKIPPED)\b",  # a test about failures
        # somebody's words, passing through a server's log
        r"\b(?:prompt|messages|content|completion|output_text|question|answer)['\"]?\s?[:=]\s?['\"\[]",
        r"^\W{0,3}(?:user|human|assistant|chatbot|bot)\W{0,2}[>:] ",
        # advice, help texts, comments
        r"^(?:if|when|in case|note:|hint:|tip:|help:|see|to (?:avoid|fix|prevent))\b"
        r"|^\s*(?:-{1,2}[a-z][\w-]* |# |//|\* )",
        r"\bif you (?:see|get|run|hit|encounter)\b",
        r"\b(?:would|could|might|may|will not) (?:cause|lead to|result in|trigger|hit)\b.{0,40}\b(?:oom|memory)\b",
        r"\b(?:no|0|zero|without) (?:\w+ )?(?:errors?|failures?|ooms?|nans?)\b",
    )),
    re.IGNORECASE,
)  # fmt: skip
_HANDLED = re.compile(
    "|".join((
        r"\b(?:re-?try(?:ing)?|retries)\b(?! (?:count|budget|failed|exhausted|exceeded|limit))|\bwill retry",
        r"\btry(?:ing)? (?:batch size|another|a smaller)|\btrying again|\bre-?download",
        r"(?<!and )(?<!please )\btry again",
        r"\busing (?:the )?cpu|\bfall(?:ing)?[- ]?(?:ing )?back|\bfallback",
        r"(?<!try )(?<!consider )(?<!by )(?<!or )\breducing\b(?!.{0,60}\bmay help)",
        r"\b(?:skipp|ignor|recover)(?:ed|ing)\b|\bcontinuing\b|\bcaught (?:an? )?(?:oom|exception|error)",
    )),
    re.IGNORECASE,
)  # fmt: skip
_SAYS = re.compile(r"\b(?:errors?|exception|failed|failure|with|reason|because|by|status|message|msg)$", re.IGNORECASE)
_GIVEN_UP = re.compile(
    r"\bgiv(?:es?|ing) up\b|\bgave up\b|\bno (?:more )?retries\b|\b(?:attempt|retry) (\d+)(?:/| of )\1\b"
    r"|\bretr(?:y|ies|ying) (?:also |again )?failed",
    re.IGNORECASE,
)

_BY_WORD: Tuple[Tuple[str, Tuple[int, ...]], ...] = tuple(
    (word, tuple(rank for rank, signature in enumerate(TABLE) if word in signature.words))
    for word in sorted({word for signature in TABLE for word in signature.words})
)


def find(text: str) -> Optional[Signature]:
    """The first signature that the line fits, None for nearly every line."""
    lowered = text.lower()
    candidates = {rank for word, ranks in _BY_WORD if word in lowered for rank in ranks}
    for rank in sorted(candidates):
        found = TABLE[rank].pattern.search(text)
        if found:
            return None if _quoted(text, found.start()) or _NO_EVIDENCE.search(text) else TABLE[rank]
    return None


def _quoted(text: str, at: int) -> bool:
    """Is that prose which quotes a message? A value in JSON or in a call stands in quotes, too, but after a sign."""
    if text.count("`", 0, at) % 2:
        return True
    if text.count('"', 0, at) % 2 == 0:
        return False
    before = text[: text.rfind('"', 0, at)].rstrip()
    return before[-1:].isalnum() and not _SAYS.search(before[-12:])


def says_handled(text: str) -> bool:
    """Does the line itself say that the program deals with it (retries, skips, goes on on the CPU)?"""
    return bool(_HANDLED.search(text)) and not _GIVEN_UP.search(text)


STEMS = (b"error", b"traceback", b"fail", b"of memory", b"kill", b"exit", b"xid")
"""One of them is in the lines that matter, or in one beside them: what the bulk of a log is searched for."""
