"""Who has the device files open: candidates, never a proof. A CUDA process that sees one GPU has the files of all of
them open, and so has a process that only reads NVML; what NVML names is a hint too, since it may be a dead pid.

`fuser` says it where it is installed, /proc else. Both see only what this user and this PID namespace may see.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
from dataclasses import replace
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from gpuctl.node import deadline
from gpuctl.node.processes import Process, find
from gpuctl.node.proof import own
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.replies import Holder
from gpuctl.wire.samples import DeviceSample

FUSER_DEADLINE_S = 10.0  # it looks at every open file of the machine: a dead NFS mount can hold it up
COMM_LENGTH = 15
COMMAND_LENGTH = 300

PROTECTED = frozenset({
    "nvidia-persistenced", "nvidia-powerd", "nv-fabricmanager", "nvidia-fabricmanager", "nvidia-imex", "nvsm_core",
    "nv-hostengine", "dcgm", "dcgm-exporter", "dcgmi", "nvidia-cuda-mps-server", "nvidia-cuda-mps-control",
    "nvidia-device-plugin", "X", "Xorg", "Xorg.bin", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland",
    "weston", "sway", "Hyprland", "mutter", "plasmashell", "gdm-x-session", "sddm", "systemd", "init",
})  # fmt: skip
"""Never ended unless proven ours: drivers' and monitors' daemons, and what draws a person's screen."""

_CONTAINER = re.compile(
    r"/lxc(?:\.payload)?[./](?P<lxc>[\w-]+)|(?:docker|libpod|cri-containerd|crio)[-/](?P<id>[0-9a-f]{12})"
)


class DeviceFile(NamedTuple):
    path: str
    device: int  # the file system that it lies on
    inode: int
    special: Optional[int]  # major and minor of a device file: another node of the same device is the same device


def patterns(node: NodeSpec) -> List[str]:
    """The node's device files, as globs; a simulated node's are those of its state folder."""
    if node.simulate is None:
        return node.devices
    from gpuctl.simulation.devices import resolved  # only simulated nodes pay for it

    return resolved(node).devices


def device_files(globs: Iterable[str]) -> List[DeviceFile]:
    found = []
    for path in sorted({path for pattern in globs for path in glob.glob(pattern)}):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            special = status.st_rdev if stat.S_ISCHR(status.st_mode) else None
            found.append(DeviceFile(path, status.st_dev, status.st_ino, special))
    return found


def holders(globs: Iterable[str]) -> Dict[int, Set[str]]:
    """pid → which of these files it has open or mapped (empty where only `fuser` could see it)."""
    files = device_files(globs)
    if not files:
        return {}
    pids = by_fuser(files)
    if pids is None:
        return by_proc(files)
    return {pid: files_of(pid, files) for pid in pids}


def by_fuser(files: Sequence[DeviceFile]) -> Optional[Set[int]]:
    """The pids. None where there is no fuser, or none that answers. Only stdout counts: names, letters and dozens of
    warnings go to stderr, and exit code 1 says "nobody" as well as "no such file"."""
    program = shutil.which("fuser", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin:/usr/bin:/sbin:/bin")))
    if program is None:
        return None
    try:
        argv = [program, *(file.path for file in files)]
        done = deadline.run(argv, stdout=subprocess.PIPE, within_s=FUSER_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {int(word) for word in done.stdout.split() if word.isdigit()}


def by_proc(files: Sequence[DeviceFile], pids: Optional[Iterable[int]] = None) -> Dict[int, Set[str]]:
    """The same from /proc, of these pids or of all."""
    listed = [int(name) for name in os.listdir("/proc") if name.isdigit()] if pids is None else pids
    found = {pid: files_of(pid, files) for pid in listed}
    return {pid: paths for pid, paths in found.items() if paths}


def files_of(pid: int, files: Sequence[DeviceFile]) -> Set[str]:
    """Which of them a process has open or mapped. Empty where it has ended or may not be looked at."""
    by_name: Dict[str, List[DeviceFile]] = {}
    for file in files:
        by_name.setdefault(os.path.basename(file.path), []).append(file)
    return _opened(pid, by_name) | _mapped(pid, by_name)


def _opened(pid: int, by_name: Dict[str, List[DeviceFile]]) -> Set[str]:
    """The link's text first: it costs nothing, and no look at a file of a dead network mount is needed. In another
    mount namespace the file has the same last name, since that is how the driver's library opens it."""
    found: Set[str] = set()
    try:
        links = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return found
    for link in links:
        try:
            candidates = by_name.get(os.path.basename(os.readlink(link)))
            if candidates:
                status = os.stat(link)
                found |= {
                    file.path
                    for file in candidates
                    if (file.device, file.inode) == (status.st_dev, status.st_ino)
                    or (file.special is not None and stat.S_ISCHR(status.st_mode) and file.special == status.st_rdev)
                }
        except OSError:
            continue  # closed meanwhile
    return found


def _mapped(pid: int, by_name: Dict[str, List[DeviceFile]]) -> Set[str]:
    found: Set[str] = set()
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields = line.rstrip("\n").split(maxsplit=5)
                for file in by_name.get(os.path.basename(fields[5]), []) if len(fields) == 6 else []:
                    if int(fields[4]) == file.inode:
                        found.add(file.path)
    except OSError:
        return found
    return found


def protected(process: Process, more: Collection[str] = ()) -> bool:
    """By the executable's name and argv[0]; by the kernel's name, cut at 15 characters, only where both are hidden."""
    names = {*PROTECTED, *more}
    known = {os.path.basename(process.argv[0])} if process.argv else set()
    try:
        known.add(os.path.basename(os.readlink(f"/proc/{process.id.pid}/exe")))
    except OSError:
        pass  # another user's
    if known:
        return bool(known & names)
    return process.comm in {name[:COMM_LENGTH] for name in names}


def described(
    node: NodeSpec, devices: Sequence[DeviceSample], owner: Mapping[int, str], apart: Collection[int] = ()
) -> List[Holder]:
    """Every living process that has a device file open or that NVML names on one of `devices`; `owner` is by pid.

    gpuctl's own telemetry, and `apart`, are not among them.
    """
    files = holders(patterns(node))
    named = named_by_nvml(devices)
    found = []
    for pid in sorted({*files, *named} - {*apart, os.getpid()}):
        process = find(pid)
        if process is not None and process.alive and not own(process):
            gpus, used_mib = named.get(pid, ([], None))
            plain = holder(process, node, owner.get(pid))
            found.append(replace(plain, devices=sorted(files.get(pid, ())), gpus=gpus, used_mib=used_mib))
    return found


def holder(process: Process, node: NodeSpec, ours: Optional[str]) -> Holder:
    """A process in the words of the wire, without what it holds."""
    return Holder(
        pid=process.id.pid,
        name=process.comm,
        user=user_name(process.uid),
        command=shlex.join(process.argv)[:COMMAND_LENGTH],
        start=process.id.start,
        ours=ours,
        protected=protected(process, node.protect),
        state=process.state,
    )


def named_by_nvml(devices: Iterable[DeviceSample]) -> Dict[int, Tuple[List[int], Optional[int]]]:
    """pid → the GPUs that NVML names it on, and its MiB there (None where NVML does not say)."""
    found: Dict[int, Tuple[List[int], Optional[int]]] = {}
    for device in devices:
        for process in device.processes or []:
            gpus, used = found.get(process.pid, ([], None))
            if process.used_mib is not None:
                used = (used or 0) + process.used_mib
            found[process.pid] = ([*gpus, device.index], used)
    return found


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def container(pid: int) -> Optional[str]:
    """The container that a process is in, as its control group names it: "101" on Proxmox, a Docker id's beginning."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            match = _CONTAINER.search(file.read())
    except OSError:
        return None
    return match and (match.group("lxc") or match.group("id"))
