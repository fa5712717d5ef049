"""What an attempt needs before it can begin: its folder's files, its environment, and a keeper whose job waits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping

from gpuctl.node import program, shell
from gpuctl.node.attempt import Starting
from gpuctl.node.oom_kills import machine_counters
from gpuctl.node.placement import simulated_environment
from gpuctl.node.watching import keep_standing

if TYPE_CHECKING:
    from gpuctl.node.supervisor import Supervisor


def prepared(of: Supervisor, number: int, known: Mapping[str, Any], added: Mapping[str, str]) -> Starting:
    """The attempt's job, forked and not yet begun. `added` are the policy's variables. Raises OSError, NotStarted."""
    folder = of.run.attempt(number)
    indices = [device.index for device in of.placement.devices]
    exported = shell.environment(of.spec, known, attempt_dir=folder.path, indices=indices, added=added)
    exported.update(simulated_environment(of.node))
    script = os.path.join(folder.path, "job.sh")
    with open(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(shell.script(of.spec, known, exported, resume=of.resuming.text(known)))
    with open(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb"):
        pass  # so that it can be followed from its first byte
    machines = machine_counters(of.node)
    keep_standing(folder.path, shell.workdir(of.spec, known), of.log_globs(known), machines=machines)
    return Starting(of.run, folder, {
        "run_dir": of.run.path,
        "lock": of.run.lock,
        "attempt_dir": folder.path,
        "log": folder.log,
        "argv": [*shell.login_shell(), script],
        "env": {**program.login_environment(), **exported},
        "secrets": of.secrets or {},
    })  # fmt: skip
