"""Verb `probe`: facts about the node for `doctor`. Reads only; judging them is the controller's part."""

from __future__ import annotations

import glob
import os
import platform
import resource
import shutil
import sys
import time
from typing import Any, Dict, Optional

from gpuctl.node import program, shell
from gpuctl.node.clock import boottime, now
from gpuctl.node.folders import StateFolder, expand
from gpuctl.node.kernel import KernelLog
from gpuctl.node.lock_dir import found_folder
from gpuctl.node.machine import identity
from gpuctl.node.oom_kills import OomCounters
from gpuctl.node.refusal import Refusal
from gpuctl.node.telemetry import Telemetry
from gpuctl.wire.nodespec import NodeSpec

TOOLS = ("tmux", "fuser", "nvidia-smi", "git", "bash", "py-spy")


def facts(node: NodeSpec) -> Dict[str, Any]:
    """Plain values; None where something could not be read."""
    user = program.login_environment()
    state = StateFolder(node).path
    with Telemetry(node, program.argv("sample")) as telemetry:
        sample = telemetry.sample()
    return {
        "time": now(),
        "mono_s": time.monotonic(),
        "python": {"version": platform.python_version(), "path": sys.executable},
        "system": {"kernel": platform.release(), "machine": platform.machine(), "distribution": _distribution()},
        "machine": identity().to_json(),
        "user": {"name": user["USER"], "uid": os.getuid(), "home": user["HOME"], "shell": shell.login_shell()[0]},
        "tools": {tool: shutil.which(tool, path=program.DEFAULT_PATH) for tool in TOOLS},
        "gpus": {
            "driver": sample.driver,
            "error": sample.error,
            "devices": [device.to_json() for device in sample.devices],
            "files": _device_files(node),
        },
        "state_dir": {"path": state, **_disk(state)},
        "lock_dir": _lock_dir(node),
        "shm": {"path": "/dev/shm", **_disk("/dev/shm")},
        "kernel": _kernel(),
        "limits": {
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "processes": resource.getrlimit(resource.RLIMIT_NPROC)[0],
            "locked_memory_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        },
        "systemd": os.path.isdir("/run/systemd/system"),
        "lingering": os.path.exists(f"/var/lib/systemd/linger/{user['USER']}"),
        "container": _container(),
        "inotify_instances": _number("/proc/sys/fs/inotify/max_user_instances"),
    }


def _distribution() -> Optional[str]:
    try:
        with open("/etc/os-release", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("PRETTY_NAME="):
                    return line.partition("=")[2].strip().strip('"')
    except OSError:
        return None
    return None


def _device_files(node: NodeSpec) -> Dict[str, bool]:
    """The device files and whether this user may open them. They are not opened: that would make us a holder."""
    found = sorted({path for pattern in node.devices for path in glob.glob(pattern) if not os.path.isdir(path)})
    return {path: os.access(path, os.R_OK | os.W_OK) for path in found}


def _disk(path: str) -> Dict[str, Optional[int]]:
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        disk = os.statvfs(path)
    except OSError:
        return {"free_bytes": None, "total_bytes": None, "free_inodes": None}
    return {
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "total_bytes": disk.f_blocks * disk.f_frsize,
        "free_inodes": disk.f_favail if disk.f_files else None,  # some file systems do not count them
    }


def _lock_dir(node: NodeSpec) -> Dict[str, Any]:
    """`used`: where leases are; None where a launch would be refused, with what it would say."""
    try:
        used = found_folder(node)
    except Refusal as refusal:
        return {"path": node.lock_dir, "usable": False, "used": None, "why": refusal.what, "cure": refusal.hint}
    return {"path": node.lock_dir, "usable": used == expand(node.lock_dir), "used": used, "why": None, "cure": None}


def _kernel() -> Dict[str, Any]:
    """What is there to tell an OOM kill from any other SIGKILL."""
    log, counters = KernelLog(), OomCounters()
    log.close()
    counters.look(os.getpid(), boottime())
    return {"log": log.readable, "oom_counters": sorted(counters.values())}


def _container() -> Optional[str]:
    """The kind of container that PID 1 says it lives in."""
    try:
        with open("/proc/1/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"container="):
                    return entry.partition(b"=")[2].decode("ascii", "replace")
    except OSError:
        return None
    return None


def _number(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
