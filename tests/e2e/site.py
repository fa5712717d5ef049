"""A site of the test's own: the command line, a simulated node on this machine, and one behind a real sshd.

Everything is done as a person or a script would do it: by `gpuctl …`. Only what they could look at themselves is looked
at here too: the node's files and the processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuctl.node.processes import ProcessId, alive, scan
from gpuctl.wire.names import ENDED
from tests.parts.command import Done, Gpuctl
from tests.parts.sshd import Sshd
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
HOLD = "python3 -m gpuctl.simulation.hold"

Event = Mapping[str, Any]


class Site(Gpuctl):
    def __init__(self, folder: Path, server: Sshd | None = None) -> None:
        self.server = server
        self.state = folder / "state"
        super().__init__(folder, inventory=self._inventory(folder))

    def _inventory(self, folder: Path) -> str:
        simulate = "simulate: {gpus: 8, memory_mib: 97887, power_limit_w: 600}"
        text = f"""\
defaults: {{state_dir: {folder}/state, lock_dir: {folder}/locks, keepalive: 1, connect_timeout: 10}}
nodes:
  sim: {{transport: local, labels: {{kind: simulated}}, {simulate}}}
"""
        return text if self.server is None else f"{text}  gpu1: {{{self.entry(folder)}, {simulate}}}\n"

    def entry(self, folder: Path, **changes: str) -> str:
        """The keys that lead to the server, as an inventory says them."""
        assert self.server is not None
        keys = {
            "address": "127.0.0.1",
            "port": str(self.server.port),
            "identity_file": str(self.server.key),
            "known_hosts": str(self.server.known_hosts),
            "ssh_config": "/dev/null",
            "state_dir": f"{folder}/far",
            **changes,
        }
        return ", ".join(f"{key}: {value}" for key, value in keys.items())

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def row(self, run: str) -> dict[str, Any]:
        (row,) = self("ps", run, "--json").json()
        return dict(row)

    def gpus(self, node: str) -> list[dict[str, Any]]:
        return list(self("gpus", node, "--json").json())

    def used_mib(self, node: str) -> int:
        return sum(gpu["memory_used_mib"] for gpu in self.gpus(node))

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run_folder(self, run: str) -> Path:
        near, far = self.folder / "state" / "runs" / run, self.folder / "far" / "runs" / run
        return far if far.exists() else near

    def journal(self, run: str, *types: str) -> list[dict[str, Any]]:
        """The node's own file, as far as it is whole."""
        path = self.run_folder(run) / "journal.jsonl"
        text = path.read_text() if path.exists() else ""
        events = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in events if not types or event["type"] in types]

    def log(self, run: str, attempt: int = 1) -> bytes:
        path = self.run_folder(run) / "attempts" / str(attempt) / "log"
        return path.read_bytes() if path.exists() else b""

    def logs(self, run: str) -> bytes:
        """All attempts' logs, one after the other."""
        attempts = self.run_folder(run) / "attempts"
        return b"".join(self.log(run, number) for number in sorted(int(path.name) for path in attempts.iterdir()))

    def await_event(self, run: str, type: str, *, attempt: int | None = None, within_s: float = 40.0) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            events = self.journal(run, type)
            return next((event for event in events if attempt is None or event.get("attempt") == attempt), None)

        try:
            return wait_until(found, within_s=within_s, what=f"{type} of {run}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.journal(run)[-5:]}") from None

    def await_log(self, run: str, text: bytes, *, attempt: int = 1) -> None:
        wait_until(lambda: text in self.log(run, attempt), what=f"{text!r} in the log of {run}")

    def await_end(self, run: str, within_s: float = 60.0) -> dict[str, Any]:
        """The run's last `run_finished`."""

        def ended() -> dict[str, Any] | None:
            finished = self.journal(run, "run_finished", "relaunching")
            return finished[-1] if finished and finished[-1].get("state") in ENDED else None

        try:
            return wait_until(ended, within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.journal(run)[-5:]}") from None

    def processes(self, verb: str, run: str = "") -> list[ProcessId]:
        """Those of the node's own program that run a verb, for one run or for any."""
        return [
            process.id
            for process in scan()
            if process.alive
            and verb in process.argv
            and any(word.endswith(".pyz") and word.startswith(str(self.folder)) for word in process.argv)
            and run in " ".join(process.argv)
        ]

    def kill_9(self, verb: str, run: str) -> None:
        """One process of the node's own program."""
        found = wait_until(lambda: self.processes(verb, run), what=f"a {verb} of {run}")
        for process in found:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(process) for process in found))

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────────

    def sh(
        self, script: str, *words: str, node: str = "sim", gpus: str = "0", name: str = "job", code: int = 0
    ) -> Done:
        """A launch of this shell text, with --json."""
        adhoc = ["--on", node, "--gpus", gpus, "--workdir", str(self.work), "--name", name, "--json", *words]
        return self("launch", *adhoc, "--", "sh", "-c", script, code=code)

    def run_of(self, script: str, *words: str, **how: Any) -> str:
        return str(self.sh(script, *words, **how).json()["run"])

    @contextmanager
    def following(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator[Follower]:
        """A command that goes on beside the test; it is gone at the end."""
        follower = Follower(self, words, env)
        try:
            yield follower
        finally:
            if follower.process.poll() is None:
                follower.process.kill()
            follower.process.wait()


class Follower:
    """A `gpuctl` beside the test, whose output goes to files, as in `gpuctl tail -f >copy`."""

    count = 0

    def __init__(self, site: Site, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        Follower.count += 1
        self.words = words
        self.out_file = site.folder / f"out-{Follower.count}"
        self.err_file = site.folder / f"err-{Follower.count}"
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpuctl", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=site.environment(env), cwd=site.work, start_new_session=True,
            )  # fmt: skip

    @property
    def out(self) -> bytes:
        return self.out_file.read_bytes()

    @property
    def err(self) -> str:
        return self.err_file.read_text()

    def await_out(self, text: bytes) -> None:
        wait_until(lambda: text in self.out, what=f"{text!r} from {self.words}; stderr: {self.err}")

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill_9(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self, code: int = 0, within_s: float = 60.0) -> Follower:
        self.process.wait(timeout=within_s)
        assert self.process.returncode == code, (self.words, self.process.returncode, self.err)
        assert "Traceback" not in self.err, self.err
        return self
