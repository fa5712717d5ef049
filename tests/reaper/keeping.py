"""A keeper's essence: a subreaper that starts one job in a session of its own and stays while it has children."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from gpuctl.node.keeper import become_subreaper
from gpuctl.node.processes import find


def main() -> None:
    order = json.loads(sys.argv[2])
    become_subreaper()
    job = os.fork()
    if job == 0:
        os.setsid()
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    found = find(job)  # at worst a zombie: nobody has waited for it yet
    assert found is not None
    print(*found.id, flush=True)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
