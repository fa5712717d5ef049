"""The numbers in an out-of-memory message, whoever wrote it: how much was asked for, on which GPU, what was free, what
this process and others held. One list of phrasings for all frameworks, since they borrow them from each other."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

from gpuctl.watchdog.sizes import SIZE, size_bytes
from gpuctl.wire.incidents import Evidence


def _sizes(*sources: str) -> Tuple["re.Pattern[str]", ...]:
    return tuple(re.compile(source.replace("SIZE", SIZE), re.IGNORECASE) for source in sources)


_FIELDS: Dict[str, Tuple["re.Pattern[str]", ...]] = {
    "requested_bytes": _sizes(
        r"trying to allocate \S+ \(rounded to SIZE\)",  # TensorFlow's BFC allocator: the exact one in brackets
        r"failed to allocate \S+ \(SIZE\)",  # StreamExecutor
        r"(?:tr(?:ied|ying|y)|attempt(?:ed|ing)?|unable|fail(?:ed)?|cannot|can't|could not|couldn't) (?:to )?(?:\w+ )?"
        r"(?:m|c|re)?alloc(?:ate)? "
        r"(?:(?:a|the|of|gpu|cuda|device|memory|buffer|request|tensor|for|block|chunk|region|space) )*"
        r"(?:size )?SIZE",
        r"cannot allocate SIZE",
        r"(?:out of|of) memory (?:while )?(?:trying )?(?:to )?allocat(?:e|ing) SIZE",
        r"allocat(?:ing|ion of|e) (?:size )?SIZE(?: bytes)?"
        r"(?: on device| of (?:device|gpu) memory| failed|:? out of memory)",
        r"(?:requested|needed) (?:buffer|amount|memory|size)[\w ]*?(?: of size|\(|:| was| of GPU memory \()? ?SIZE",
        r"request(?:ed)? (?:for|of)? ?SIZE(?= bytes| on| \(|\b)",
        r"requested\s*:\s*SIZE",
        r"\bsize(?: was| of|:|=)? ?SIZE bytes",
    ),
    "total_bytes": _sizes(
        r"total capac(?:i)?ty of SIZE",
        r"SIZE total capacity",
        r"total memory reported: SIZE",
        r"device limit\s*:\s*SIZE",
        r"\btotal(?: gpu| device)?(?: memory)?[:=]? ?SIZE",
    ),
    "free_bytes": _sizes(
        r"of which SIZE is free",
        r"SIZE free",
        r"available memory is only SIZE",
        r"free \(according to CUDA\)\s*:\s*SIZE",
        r"\bfree(?: gpu| device)?(?: memory)?[:=]? ?SIZE",
    ),
    "in_use_bytes": _sizes(r"this process has SIZE memory in use"),
    "allocated_bytes": _sizes(
        r"SIZE is allocated by PyTorch",
        r"SIZE already allocated",
        r"currently allocated\s*:\s*SIZE",
        r"SIZE memory has been allocated",
    ),
}
_UNALLOCATED = _sizes(r"SIZE is reserved by PyTorch but unallocated", r"SIZE cached")
_RESERVED = _sizes(r"SIZE reserved in total by PyTorch")
_ALLOWED = _sizes(r"SIZE allowed;", r"limit set to:? SIZE", r"max allowed: SIZE")
_OTHER = re.compile(r"\bProcess (\d+) has SIZE memory in use".replace("SIZE", SIZE))
_USABLE = 0.95  # of a GPU: contexts and the driver want the rest
_GPU = re.compile(
    r"\bGPU[ :=#]{0,2}(\d{1,2})\b(?!\.\d)|\bGPU_(\d{1,2})_bfc|\bdevice (?:ordinal |id |number )?(\d{1,2})\b"
    r"|\b(?:cuda|xpu|npu|hip|musa)[: ](\d{1,2})\b"
    r"|\bDevice: (\d{1,2})\b",
    re.IGNORECASE,
)


def gpu_index(text: str) -> Optional[int]:
    """The GPU that a message names, as its process counts them."""
    found = _GPU.search(text)
    return next((int(group) for group in found.groups() if group), None) if found else None


def allowed_bytes(text: str) -> Optional[int]:
    """The limit that the program set for itself (a memory fraction, a pool's limit), None where there is none."""
    return _first(_ALLOWED, text)


def with_numbers(evidence: Evidence, text: str) -> Evidence:
    """The evidence with what `text` (its line and those that continue it) states, where it did not know it yet."""
    found = {name: _first(patterns, text) for name, patterns in _FIELDS.items()}
    reserved = _first(_UNALLOCATED, text)
    if reserved is None:
        total, allocated = _first(_RESERVED, text), found["allocated_bytes"]
        reserved = total - allocated if total is not None and allocated is not None and total >= allocated else None
    found["reserved_bytes"] = reserved
    found["gpu"] = gpu_index(text)
    news = {name: value for name, value in found.items() if value is not None and getattr(evidence, name) is None}
    others = [{"pid": int(pid), "bytes": size_bytes(number, unit) or 0} for pid, number, unit in _OTHER.findall(text)]
    return replace(evidence, **news, others=evidence.others or others)  # type: ignore[arg-type]


def is_fragmented(evidence: Evidence) -> bool:
    """Would what the allocator holds unused have served the request? And is it a share that defragmenting can win back:
    a few MiB of rounding are always lying about."""
    reserved, requested, total = evidence.reserved_bytes, evidence.requested_bytes, evidence.total_bytes
    if reserved is None or requested is None:
        return False
    return reserved >= 0.1 * (total or 10 * requested) and reserved + (evidence.free_bytes or 0) >= requested


def held_by_others(evidence: Evidence) -> bool:
    """Does the message say that without other processes there would have been room? Those marked as `ours`, of the same
    attempt, are none: its ranks may share a GPU.

    Where it does not say what this process has in use, the pid that it names may be its own (the driver counts the
    pids of a container's processes differently): then only where that is nearly nothing.
    """
    others = sum(other["bytes"] for other in evidence.others if not other.get("ours"))
    own, asked = evidence.in_use_bytes, evidence.requested_bytes
    if own is None or asked is None or evidence.total_bytes is None:
        own = own if own is not None else evidence.allocated_bytes
        return bool(others) and own is not None and others > 4 * own
    with_ours = own + sum(other["bytes"] for other in evidence.others if other.get("ours"))
    fits_alone = with_ours + asked <= _USABLE * evidence.total_bytes
    return bool(others) and fits_alone and others + (evidence.free_bytes or 0) >= asked


def _first(patterns: Tuple["re.Pattern[str]", ...], text: str) -> Optional[int]:
    for pattern in patterns:
        found = pattern.search(text)
        if found:
            return size_bytes(found.group(1), found.group(2))
    return None


__all__: List[str] = ["allowed_bytes", "gpu_index", "held_by_others", "is_fragmented", "with_numbers"]


def wants_a_share(text: str) -> bool:
    """Whether an engine refuses to start because the share of the GPU that it was told to take is not free: neither a
    batch nor a length plays a part in that."""
    return "less than desired gpu memory utilization" in text.lower()
