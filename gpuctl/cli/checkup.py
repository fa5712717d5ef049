"""What `doctor` makes of a node's facts. Pure: facts in, findings with their cure out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gpuctl.cli import sentences
from gpuctl.spec.inventory import Node

Facts = Mapping[str, Any]

_ROOM_BYTES = 1 << 30  # logs, journals and bundles; checkpoints are the job's own business
_INODES = 10_000
_SHM_BYTES = 8 << 30  # data loaders and NCCL of one multi-GPU job
_OPEN_FILES = 4096
_SKEW_S = 30.0


@dataclass(frozen=True)
class Finding:
    """`cure` says how to mend it; it is empty where all is well."""

    verdict: Literal["ok", "warn", "fail"]
    what: str
    cure: str = ""


def findings(node: Node, facts: Facts, *, now: datetime | None = None) -> list[Finding]:
    """Everything worth saying about the node, in the order in which a launch would meet it."""
    return [
        *_python(facts),
        *_clock(facts, now or datetime.now(UTC)),
        *_gpus(node, facts),
        *_tools(node, facts),
        *_folders(facts),
        *_kernel(facts),
        *_limits(facts),
        *_logout(node, facts),
    ]


def _python(facts: Facts) -> Iterator[Finding]:
    python, user = facts.get("python") or {}, facts.get("user") or {}
    yield Finding("ok", f"Python {python.get('version')} ({python.get('path')}), as {user.get('name')}")


def _clock(facts: Facts, now: datetime) -> Iterator[Finding]:
    try:
        skew = (datetime.fromisoformat(facts["time"]) - now).total_seconds()
    except (KeyError, TypeError, ValueError):
        return
    if abs(skew) > _SKEW_S:
        ahead = "ahead of" if skew > 0 else "behind"
        yield Finding(
            "warn",
            f"its clock is {sentences.duration(abs(skew))} {ahead} this one's",
            "set it by NTP: times in journals are its own",
        )


def _gpus(node: Node, facts: Facts) -> Iterator[Finding]:
    gpus = facts.get("gpus") or {}
    devices = gpus.get("devices") or []
    if devices:
        kind = "simulated GPUs" if node.simulate else "GPUs"
        yield Finding("ok", f"{len(devices)} {kind}: {devices[0].get('name')}, driver {gpus.get('driver')}")
        yield from _cards(node, devices)
        closed = [path for path, usable in (gpus.get("files") or {}).items() if not usable]
        if closed and not node.simulate:
            yield Finding(
                "fail",
                f"no access to {', '.join(closed)}",
                "add the user to the group that owns them (video, render), or pass them into the container",
            )
        return
    there = bool(gpus.get("files"))  # device files without a GPU that can be read: something is broken
    yield Finding(
        "fail" if there else "warn",
        f"no GPUs: {gpus.get('error') or 'none is there'}",
        "jobs with `gpus: 0` run all the same; else install the driver, or name its library (nvml_library)",
    )


def _cards(node: Node, devices: list[dict[str, Any]]) -> Iterator[Finding]:
    missing = [index for index in node.gpus or [] if index not in {device.get("index") for device in devices}]
    if missing:
        yield Finding("fail", f"the inventory names GPUs that are not there: {missing}", "correct `gpus:` of this node")
    for device in devices:
        if device.get("error"):
            yield Finding(
                "fail",
                f"GPU {device.get('index')}: {device['error']}",
                "see `dmesg` there for Xid errors; it may need a reset",
            )
        if device.get("mig"):
            yield Finding("warn", f"GPU {device.get('index')} is split by MIG", "gpuctl leases whole GPUs only")


def _tools(node: Node, facts: Facts) -> Iterator[Finding]:
    tools = facts.get("tools") or {}
    if tools.get("tmux"):
        yield Finding("ok", f"tmux ({tools['tmux']})")
    else:
        needed = node.launcher == "tmux"
        yield Finding(
            "fail" if needed else "warn", "no tmux", "install it, or use launcher: nohup; attach then shows the log"
        )
    if tools.get("fuser"):
        yield Finding("ok", f"fuser ({tools['fuser']})")
    else:
        yield Finding(
            "warn", "no fuser: users of device files are sought in /proc, which takes longer", "install psmisc"
        )
    if not tools.get("bash"):
        yield Finding("warn", "no bash: jobs run in sh, without pipefail where it has none", "install bash")


def _folders(facts: Facts) -> Iterator[Finding]:
    state, lock, shm = facts.get("state_dir") or {}, facts.get("lock_dir") or {}, facts.get("shm") or {}
    free, inodes = state.get("free_bytes"), state.get("free_inodes")
    if free is not None and free < _ROOM_BYTES:
        yield Finding(
            "fail",
            f"{state.get('path')}: only {sentences.size(free)} free",
            "make room, or set state_dir to another disk; gpuctl prune helps",
        )
    elif inodes is not None and inodes < _INODES:
        yield Finding(
            "fail", f"{state.get('path')}: only {inodes} inodes free", "remove small files there; gpuctl prune helps"
        )
    else:
        yield Finding("ok", f"{state.get('path')}: {sentences.size(free)} free")
    if lock.get("why"):
        yield Finding(
            "fail",
            f"no GPU can be leased: {lock['why']}",
            f"{lock.get('cure')}, or set another lock_dir (the same for all accounts of the machine)",
        )
    elif lock.get("usable") is False:
        yield Finding(
            "warn",
            f"{lock.get('path')} can't be made; leases are in {lock.get('used')}",
            "make it, mode 1777 (/run is empty after a restart: by tmpfiles.d), or set lock_dir",
        )
    if shm.get("total_bytes") is not None and shm["total_bytes"] < _SHM_BYTES:
        yield Finding(
            "warn",
            f"{shm.get('path')} has only {sentences.size(shm['total_bytes'])}",
            "data loaders and NCCL may need more: remount it larger",
        )


def _kernel(facts: Facts) -> Iterator[Finding]:
    kernel = facts.get("kernel") or {}
    if kernel.get("log"):
        yield Finding("ok", "the kernel's log can be read: it names whom it killed for memory, and GPU errors")
    elif kernel.get("oom_counters"):
        yield Finding("ok", "the kernel's log is closed to this account; its OOM kills are counted")
    elif kernel:
        yield Finding(
            "warn",
            "OOM kills are neither logged nor counted here: they can't be told from any other SIGKILL",
            "let this account read the kernel's log (sysctl kernel.dmesg_restrict=0)",
        )


def _limits(facts: Facts) -> Iterator[Finding]:
    files = (facts.get("limits") or {}).get("open_files")
    if files is not None and 0 <= files < _OPEN_FILES:
        yield Finding(
            "warn",
            f"at most {files} open files a process",
            "raise it in /etc/security/limits.conf; many data loaders need more",
        )


def _logout(node: Node, facts: Facts) -> Iterator[Finding]:
    if facts.get("systemd") and facts.get("lingering") is False and (facts.get("user") or {}).get("uid") != 0:
        user = (facts.get("user") or {}).get("name")
        yield Finding("warn", "systemd may end runs when their user logs out", f"loginctl enable-linger {user}")
