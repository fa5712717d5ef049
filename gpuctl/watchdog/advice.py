"""What to tell a person: what was asked for, what was free, what held the rest, what to do."""

from __future__ import annotations

from typing import Dict

from gpuctl.watchdog.gpu_memory import held_by_others, wants_a_share
from gpuctl.watchdog.sizes import show_size
from gpuctl.wire.incidents import Evidence, Incident

_ADVICE: Dict[str, str] = {
    "gpu_oom": "A smaller batch or sequence should fit.",
    "gpu_oom_at_load": (
        "The model itself does not fit: a smaller batch won't help; use more or larger GPUs, a smaller model, or "
        "quantisation."
    ),
    "gpu_oom_fragmentation": (
        "Much is reserved but unused: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first."
    ),
    "kv_cache_too_small": (
        "What is left beside the weights is too small for the KV cache: lower the maximum length or number of "
        "sequences, or give the engine a larger share of the GPU."
    ),
    "host_oom": (
        "The machine's (or container's) main memory ran out, not the GPU's: fewer data loader workers, less cached"
        " in memory, or a higher limit."
    ),
    "shm_exhausted": (
        "Shared memory is full: enlarge it (docker: --shm-size or --ipc=host) or use fewer data loader workers."
    ),
    "nccl_timeout": (
        "A rank did not join a collective in time: look for what the slowest or a dead rank was doing; a second "
        "try may do."
    ),
    "nccl_error": (
        "The ranks could not talk to each other: check the network, the interfaces (NCCL_SOCKET_IFNAME) and which "
        "rank uses which GPU."
    ),
    "xid_hw": (
        "The GPU or its link reports a hardware fault: drain the node and reset or replace the card before using "
        "it again."
    ),
    "driver_hung": "The driver does not answer: the node needs a look, probably a restart.",
    "cuda_illegal_access": (
        "A kernel touched memory that is not its own: a bug of the program or its extension; "
        "CUDA_LAUNCH_BLOCKING=1 shows where."
    ),
    "device_assert": (
        "A check inside a kernel failed, mostly an index (a label or token id) out of range: look at the data, "
        "with CUDA_LAUNCH_BLOCKING=1."
    ),
    "driver_mismatch": (
        "This build can't use the GPU with this driver (or no GPU is visible): `gpuctl doctor` compares them."
    ),
    "disk_full": "A disk or quota is full: make room, then relaunch.",
    "code_error": "The program failed by itself: see the traceback; a relaunch would fail in the same way.",
    "nan_loss": (
        "The numbers became NaN: lower the learning rate, check the data, or go back to an earlier checkpoint."
    ),
    "checkpoint_corrupt": (
        "A file to be loaded is damaged or cut off: fetch it anew, or resume from the one before it."
    ),
    "port_in_use": (
        "Another process listens on that port: choose another one ({port} in the job file gives a free one)."
    ),
    "auth_or_download": (
        "A download was refused or failed: check the token, the licence's acceptance and the network."
    ),
    "thread_died": ("A thread of the program died while the process lives on; what depends on it will wait for ever."),
    "rank_failed_secondary": "This is the report of another process's failure: its own log has the cause.",
    "triton_out_of_resources": (
        "A kernel needs more shared memory or registers than this GPU has: smaller block sizes or fewer stages."
    ),
    "timeout": "It took longer than it was allowed to.",
    "unknown": "Nothing in the log says why.",
}


def advise(incident: Incident) -> str:
    """Full sentences for this incident."""
    parts = []
    if any(wants_a_share(evidence.text) for evidence in incident.evidence):
        return (
            "The engine was told to take a larger share of the GPU than is free: lower gpu_memory_utilization, or free "
            "the GPU of who else holds memory there. Neither a batch nor a length plays a part in that."
        )
    if incident.evidence and incident.cls.startswith("gpu_oom"):
        parts.append(_numbers(incident.evidence[0]))
        if held_by_others(incident.evidence[0]):
            parts.append("Another process holds most of the GPU: end it or wait for it; a smaller batch won't help.")
            return " ".join(part for part in parts if part)
    parts.append(_ADVICE.get(incident.cls, _ADVICE["unknown"]))
    return " ".join(part for part in parts if part)


def _numbers(evidence: Evidence) -> str:
    """Asked for, free, held: as far as the message states it."""
    where = f"GPU {evidence.gpu}" if evidence.gpu is not None else "The GPU"
    if evidence.requested_bytes is None:
        return f"{where} ran out of memory."
    text = f"{where} was asked for {show_size(evidence.requested_bytes)}"
    if evidence.free_bytes is not None:
        text += f" with {show_size(evidence.free_bytes)} free"
        text += f" of {show_size(evidence.total_bytes)}" if evidence.total_bytes is not None else ""
    held = []
    if evidence.allocated_bytes is not None:
        held.append(f"{show_size(evidence.allocated_bytes)} allocated by this process")
    if evidence.reserved_bytes:
        held.append(f"{show_size(evidence.reserved_bytes)} reserved but unused")
    held += [f"{show_size(other['bytes'])} held by process {other['pid']}" for other in evidence.others]
    return text + (f" ({', '.join(held)})." if held else ".")
