"""The user's own line, run when a run reaches a state that it names: somebody is told while the laptop is closed."""

from __future__ import annotations

import subprocess

from gpuctl.node import deadline, program
from gpuctl.node.history import Record
from gpuctl.node.shell import login_shell
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec

DEADLINE_S = 30.0


def call_back(spec: RunSpec, node: NodeSpec, record: Record) -> None:
    """Runs the job's callback, or the node's, if it is for this state, and journals how that went."""
    wanted = spec.callback or node.callback
    life = record.life
    if wanted is None or life.state not in wanted.when:
        return
    told = {"RUN": spec.run, "STATE": life.state, "WHY": life.why or "", "JOB": spec.job, "NODE": spec.node}
    environment = {**program.login_environment(), **{f"GPUCTL_{name}": value for name, value in told.items()}}
    try:
        done = deadline.run([*login_shell(), "-c", wanted.run], env=environment, within_s=DEADLINE_S)
        record.write("callback", exit_code=done.returncode, state=life.state)
    except subprocess.TimeoutExpired:
        record.write("callback", exit_code=None, state=life.state, why=f"it took longer than {DEADLINE_S:.0f} s")
    except OSError as error:
        record.write("callback", exit_code=None, state=life.state, why=str(error))
