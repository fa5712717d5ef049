"""A mount namespace of the tests' own, where they run as root: this machine with a plain login and no tmux server.

What a user's login profile does is slow, differs from machine to machine, and may keep locks that a killed shell leaves
behind (pyenv's). And gpuctl's tmux server is one for all of a user's runs: a test that ends it must end nobody else's.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

CLONE_NEWNS = 0x00020000
PROFILES = (".bash_profile", ".bash_login", ".profile", ".bashrc")


def enter_own_mounts(folder: Path) -> bool:
    """For this process and all that it starts from now on. False where that is not allowed: all is as it was."""
    if os.getuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return False
    _mount("--make-rprivate", "/")
    empty = folder / "profile"
    empty.write_text("")
    for profile in map(Path.home().joinpath, PROFILES):
        if profile.is_file():
            _mount("--bind", str(empty), str(profile))
    sockets = folder / "tmux"
    sockets.mkdir(mode=0o700)
    shared = Path(f"/tmp/tmux-{os.getuid()}")
    shared.mkdir(mode=0o700, exist_ok=True)
    _mount("--bind", str(sockets), str(shared))
    return True


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
