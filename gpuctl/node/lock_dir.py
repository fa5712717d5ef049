"""The one folder for leases that all accounts of this machine agree on: the node's `lock_dir`, or where the first of
them could not make that, one in /tmp, which those who come later then use too."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Sequence, Tuple

from gpuctl.node.folders import expand
from gpuctl.node.refusal import UNFIT, Refusal
from gpuctl.wire.nodespec import NodeSpec

FALLBACK_IN = "/tmp"


def shared_folder(node: NodeSpec, *, fallback_in: str = FALLBACK_IN) -> str:
    """The folder, made where it is missing. Raises Refusal."""
    candidates = _candidates(node, fallback_in)
    for path in candidates:
        if os.path.lexists(path):
            return _checked(path)
    for path in candidates:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
                os.chmod(path, 0o1777)  # noqa: S103  (all accounts; whatever the umask says)
            return _checked(path)
    raise _neither(candidates)


def found_folder(node: NodeSpec, *, fallback_in: str = FALLBACK_IN) -> str:
    """The folder that is there, or would be made, without making it. Raises the same Refusal."""
    candidates = _candidates(node, fallback_in)
    for path in candidates:
        if os.path.lexists(path):
            return _checked(path)
    for path in candidates:
        above = _nearest(os.path.dirname(path))
        if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
            return path
    raise _neither(candidates)


def _candidates(node: NodeSpec, fallback_in: str) -> Tuple[str, str]:
    wanted = expand(node.lock_dir)
    return wanted, os.path.join(fallback_in, "gpuctl" + wanted.replace("/", "-"))


def _neither(candidates: Sequence[str]) -> Refusal:
    return Refusal(UNFIT, f"can make neither {' nor '.join(candidates)}", "make one of them, mode 1777")


def _nearest(path: str) -> str:
    """What of it is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _checked(path: str) -> str:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal(UNFIT, f"{path} is not a folder", "remove it; gpuctl makes a folder there, mode 1777")
    shared = found.st_mode & 0o1002 == 0o1002
    if not (shared or found.st_uid == os.getuid()) or not os.access(path, os.W_OK | os.X_OK):
        raise Refusal(
            UNFIT, f"{path} is closed to us: its mode is {stat.S_IMODE(found.st_mode):o}", f"chmod 1777 {path}"
        )
    return path
