"""The closed lists of CONTRACT: states, failure classes, event types. A name outside them is a type error."""

from __future__ import annotations

from typing import Literal, Tuple

State = Literal[
    "queued", "starting", "loading", "running", "cleaning", "relaunching",
    "succeeded", "failed", "killed", "blocked", "lost",
]  # fmt: skip
ENDED: Tuple[State, ...] = ("succeeded", "failed", "killed", "blocked", "lost")

FailureClass = Literal[
    "gpu_oom", "gpu_oom_at_load", "gpu_oom_fragmentation", "kv_cache_too_small", "host_oom", "shm_exhausted",
    "nccl_timeout", "nccl_error", "xid_hw", "driver_hung", "cuda_illegal_access", "device_assert", "driver_mismatch",
    "disk_full", "code_error", "nan_loss", "checkpoint_corrupt", "port_in_use", "auth_or_download", "thread_died",
    "rank_failed_secondary", "triton_out_of_resources", "stalled", "low_power", "timeout", "unknown",
]  # fmt: skip

EventType = Literal[
    "run_created", "attempt_started", "loading", "ready", "progress", "incident", "attempt_exited", "cleaning",
    "killed", "spared", "gpus_empty", "waiting", "relaunching", "log_truncated", "callback", "run_finished",
    "request", "not_empty", "supervisor_started", "note", "recovered", "xid", "stacks",
]  # fmt: skip

Phase = Literal["load", "train", "infer", "unknown"]
