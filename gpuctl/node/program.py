"""How the program on the node starts itself: argv, and an environment that marks nothing as a job's.

Keeper, supervisor, sampler and tmux server must run without any GPUCTL_* variable: that marker is the job's alone, and
a tmux server hands its environment to every later session.
"""

from __future__ import annotations

import os
import pwd
import sys
from typing import Dict, List

FLAGS = "-IS"
"""Isolated from the user's site and folder, and without site-packages, whose .pth files cost 2 MB and run anything."""

EVERYONES = ("/etc/default/locale", "/etc/environment")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def archive() -> str:
    """The zipapp that this process runs from; `__main__` puts it first in argv."""
    return os.path.abspath(sys.argv[0])


def argv(*verb: str) -> List[str]:
    """The argv that runs a verb of this same bundle, in this same Python."""
    return [sys.executable, FLAGS, archive(), *verb]


def login_environment() -> Dict[str, str]:
    """What a login starts from, the same however we were reached; the login shell's profile does the rest."""
    entry = pwd.getpwuid(os.getuid())
    environment = {"PATH": DEFAULT_PATH}
    for path in EVERYONES:
        environment.update(_assignments(path))
    environment.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name, SHELL=entry.pw_shell or "/bin/sh")
    return environment


def own_environment() -> Dict[str, str]:
    """For keeper, supervisor, sampler and tmux server: whatever the machine's administrator has put there for all."""
    return {name: value for name, value in login_environment().items() if not name.startswith("GPUCTL_")}


def _assignments(path: str) -> Dict[str, str]:
    """`NAME=value` lines as pam_env reads them; nothing where the file can't be read."""
    found: Dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, equals, value = line.strip().partition("=")
                name = name[7:].strip() if name.startswith("export ") else name
                if equals and name.isidentifier():
                    found[name] = value.strip().strip("\"'")
    except OSError:
        return {}
    return found
