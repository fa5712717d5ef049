"""A node on this machine: the real bundle, called as the controller calls it, in a state folder of the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuctl.bundle import build
from gpuctl.node.faults import POINTS
from gpuctl.node.journal import read
from gpuctl.node.processes import ProcessId, alive, scan
from gpuctl.wire import VERSION
from gpuctl.wire.life import Life, fold
from gpuctl.wire.nodespec import NodeSpec, Simulate
from gpuctl.wire.runspec import RunSpec
from tests.parts.leftovers import end_all
from tests.waiting import wait_until


class TestNode:
    __test__ = False

    def __init__(
        self,
        folder: Path,
        *,
        gpus: int = 2,
        python: str = sys.executable,
        flags: Sequence[str] = ("-I",),
        **keys: Any,
    ) -> None:
        self.folder = folder
        self.python = [python, *flags]
        self.state_dir = folder / "state"
        self.spec = NodeSpec(
            name="sim",
            state_dir=str(self.state_dir),
            lock_dir=str(folder / "locks"),
            simulate=Simulate(gpus=gpus, memory_mib=97887),
        )
        if keys:
            self.spec = replace(self.spec, **keys)
        bundle = build()
        agent = self.state_dir / "agent"
        agent.mkdir(parents=True, mode=0o700)
        self.archive = agent / f"{bundle.digest}.pyz"
        self.archive.write_bytes(bundle.data)

    def job(self, command: str, run: str = "job-1", **keys: Any) -> RunSpec:
        return RunSpec(
            run=run, job=run.rpartition("-")[0], node="sim", command=command, workdir=str(self.folder), **keys
        )

    def popen(self, verb: str, **arguments: Any) -> subprocess.Popen[bytes]:
        """A verb with its request already sent; stdin stays open."""
        process = subprocess.Popen(
            [*self.python, str(self.archive), verb], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        request = {"version": VERSION, "node": self.spec.to_json(), **arguments}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        return process

    def call(self, verb: str, **arguments: Any) -> list[dict[str, Any]]:
        process = self.popen(verb, **arguments)
        out, _ = process.communicate(timeout=90)
        return [json.loads(line) for line in out.splitlines()]

    def start(self, spec: RunSpec, **arguments: Any) -> dict[str, Any]:
        """The answer to `start`: a row, or an error."""
        return self.call("start", spec=spec.to_json(), **arguments)[-1]

    def ask(self, run: str, kind: str, *, wait: bool = True, **keys: Any) -> list[dict[str, Any]]:
        request = {"id": os.urandom(4).hex(), "kind": kind, **keys}
        return self.call("request", run=run, request=request, wait=wait)

    def ps(self) -> dict[str, dict[str, Any]]:
        return {row["run"]: row for row in self.call("ps", all=True)[-1]["runs"]}

    def events(self, run: str = "job-1", type: str | None = None) -> list[dict[str, Any]]:
        found = read(str(self.state_dir / "runs" / run / "journal.jsonl"))
        return [event for event in found if type is None or event["type"] == type]

    def life(self, run: str = "job-1") -> Life:
        return fold(self.events(run))

    def log(self, run: str = "job-1", attempt: int = 1) -> str:
        return (self.state_dir / "runs" / run / "attempts" / str(attempt) / "log").read_text()

    def wait_state(self, *states: str, run: str = "job-1", within_s: float = 30.0) -> Life:
        def reached() -> Life | None:
            life = self.life(run)
            return life if life.state in states else None

        try:
            return wait_until(reached, within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.life(run)}, {self.events(run)[-6:]}, {self.errors(run)}") from None

    def wait_over(self, run: str = "job-1", within_s: float = 40.0) -> Life:
        return self.wait_state("succeeded", "failed", "killed", "blocked", "lost", run=run, within_s=within_s)

    def errors(self, run: str = "job-1") -> str:
        path = self.state_dir / "runs" / run / "supervisor.err"
        return path.read_text() if path.exists() else ""

    def fault(self, point: str, who: str = "self") -> None:
        """Makes a supervisor of this node die at a named point, once."""
        assert point in POINTS, f"{point} is never reached"
        faults = self.state_dir / "faults"
        faults.mkdir(exist_ok=True)
        (faults / point).write_text(who)

    def processes(self, verb: str) -> list[ProcessId]:
        """The living processes of this node's own program that run a verb."""
        return [
            process.id
            for process in scan()
            if process.alive and str(self.archive) in process.argv and verb in process.argv
        ]

    def kill_9(self, verb: str) -> None:
        found = wait_until(lambda: self.processes(verb), what=f"a {verb} to kill")
        for process in found:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(process) for process in found))

    def jobs_of(self, run: str = "job-1") -> list[ProcessId]:
        """The first processes of all attempts that live."""
        started = self.events(run, "attempt_started")
        ids = [ProcessId(event["pid"], event["pid_start"]) for event in started]
        return [process for process in ids if alive(process)]

    def close(self) -> None:
        """Ends what a failed test left."""
        end_all(self.state_dir)


@contextmanager
def node(folder: Path, **keys: Any) -> Iterator[TestNode]:
    made = TestNode(folder, **keys)
    try:
        yield made
    finally:
        made.close()
