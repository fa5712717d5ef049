"""The `gpuctl` command as people and scripts start it: a process of its own, judged by output and exit code."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

ARGV = [sys.executable, "-m", "gpuctl"]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[dict[str, Any]]:
        """JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Screen:
    """A program on a terminal of its own, as a person sits before it."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self._terminal = process, terminal
        self.shown = b""

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def shows(self, text: bytes) -> None:
        """Waits until it has shown that."""
        wait_until(lambda: text in self._read(), what=f"{text!r} on the screen")

    def end(self) -> int:
        """Reads on until the program has ended; its exit code."""
        code = wait_until(lambda: self._read() is not None and self._code(), what="its end")
        self._read()
        os.close(self._terminal)
        return code[0]

    def _code(self) -> tuple[int] | None:
        code = self.process.poll()
        return None if code is None else (code,)

    def _read(self) -> bytes:
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                self.shown += os.read(self._terminal, 65536)
            except OSError:  # EIO: nobody has its other end open any more
                break
        return self.shown


class Gpuctl:
    """`gpuctl("ps", "--json")`. Nodes `local` (no GPU) and `sim` (4 simulated GPUs) keep all they have in `folder`."""

    def __init__(self, folder: Path, *, inventory: str | None = None) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        self.inventory = folder / "inventory.yaml"
        self.inventory.write_text(inventory or _inventory(folder))

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}
        own = {"GPUCTL_HOME": str(self.folder / "home"), "GPUCTL_INVENTORY": str(self.inventory), "NO_COLOR": "1"}
        return {**kept, **own, **(extra or {})}

    def __call__(
        self, *words: str, code: int | None = 0, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> Done:
        """Runs it to its end. `code` is the exit code expected; None: any."""
        done = subprocess.run(
            [*ARGV, *words],
            check=False,
            input=stdin,
            capture_output=True,
            env=self.environment(env),
            cwd=self.work,
            timeout=100,
        )
        found = Done(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert code is None or found.code == code, f"gpuctl {words} → {found}"
        assert "Traceback (most recent call last)" not in found.err, found.err
        assert "internal error" not in found.err, found.err
        return found

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C (SIGINT to it) reaches nothing else."""
        return subprocess.Popen(
            [*ARGV, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=self.environment(), cwd=self.work, start_new_session=True,
        )  # fmt: skip

    def on_terminal(self, *words: str) -> Screen:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*ARGV, *words], stdin=theirs, stdout=theirs, stderr=theirs,
            env=self.environment({"TERM": "xterm"}), cwd=self.work, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        return Screen(process, ours)

    def launch(self, command: str, *words: str, gpus: int = 0, node: str = "sim") -> str:
        """A run of this shell text; its id."""
        adhoc = ["--workdir", str(self.work), "--name", "job", *words]
        done = self("launch", "--on", node, "--gpus", str(gpus), "--json", *adhoc, "--", "sh", "-c", command)
        return str(done.json()["run"])

    def job(self, text: str, name: str = "job.yaml") -> Path:
        """A job file in the folder that commands run in."""
        path = self.work / name
        path.write_text(text)
        return path


def _inventory(folder: Path) -> str:
    return f"""\
defaults: {{state_dir: {folder}/state, lock_dir: {folder}/locks, keepalive: 2}}
nodes:
  local: {{transport: local}}
  sim: {{transport: local, labels: {{kind: simulated}}, simulate: {{gpus: 4, memory_mib: 97887}}}}
"""
