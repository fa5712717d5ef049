"""A line of the ledger (`ledger.jsonl` on the node): what one attempt on empty GPUs has shown about its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from gpuctl.wire.runspec import Scalar
from gpuctl.wire.word import Word

OUT_OF_MEMORY: Tuple[str, ...] = ("gpu_oom", "gpu_oom_fragmentation", "gpu_oom_at_load", "kv_cache_too_small")
"""The failure classes by which an attempt shows that its values do not fit."""


@dataclass(frozen=True)
class LedgerEntry(Word):
    """Memory is of the fullest of its GPUs, by telemetry; an absent reading is None, never 0."""

    run: str
    attempt: int
    job: str
    template: str  # a fingerprint of the command as it stands in the job file, without values
    model: str  # of its GPUs
    count: int  # of its GPUs
    params: Dict[str, Scalar] = field(default_factory=dict)
    fitted: bool = False  # it made progress, or succeeded
    cls: Optional[str] = None  # the failure class that ended it
    exit_code: Optional[int] = None
    code: Optional[Dict[str, Any]] = None  # {"commit", "dirty"} of its workdir, None where that is no checkout
    env: Optional[str] = None  # a fingerprint of the job file's environment with these values; None: nobody knows
    total_mib: Optional[int] = None
    loaded_mib: Optional[int] = None  # in use once it was ready: what the model alone takes
    peak_mib: Optional[int] = None
    loading_s: Optional[float] = None
    duration_s: Optional[float] = None
    node: str = ""
    time: str = ""  # of its end

    @property
    def too_big(self) -> bool:
        """Has it shown that its values do not fit?"""
        return self.cls in OUT_OF_MEMORY
