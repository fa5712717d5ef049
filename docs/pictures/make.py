"""Draws the README's pictures from real runs: `.venv/bin/python docs/pictures/make.py [FOLDER]`.

What is shown is what the program printed, on simulated GPUs; only the wrapping of long lines is the picture's. Numbers,
pids and run ids differ from one drawing to the next.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"
PROGRAM = [sys.executable, "-m", "gpuctl"]
DEMO_COLUMNS = 124
TABLE_COLUMNS = 148
SENTENCE_AT = 33  # where an event's sentence begins: after time, attempt and type
PATIENCE_S = 60.0
HOLD = shlex.split("python3 -m gpuctl.simulation.hold --mib 18000 --power 0.8 --utilisation 97")

INVENTORY = """\
defaults: {{state_dir: {folder}/node, lock_dir: {folder}/locks}}
nodes:
  sim:
    transport: local
    simulate: {{gpus: 8, memory_mib: 97887, power_limit_w: 600, model: "RTX PRO 6000 Blackwell"}}
"""


def draw_demo(folder: Path) -> Path:
    """`gpuctl demo`, as a pipe gets it."""
    environment = _environment()
    done = subprocess.run(
        [*PROGRAM, "demo"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, check=True
    )
    picture = _Picture("gpuctl demo", DEMO_COLUMNS)
    picture.prompt("gpuctl demo")
    for line in done.stdout.splitlines():
        hanging = " " * SENTENCE_AT if re.match(r"\d\d:\d\d:\d\d ", line) else ""
        for piece in wrap(line, DEMO_COLUMNS, subsequent_indent=hanging, drop_whitespace=True) or [""]:
            picture.line(Text(piece))
    return picture.save(folder / "demo.svg")


def draw_node(folder: Path) -> Path:
    """`gpuctl ps` and `gpuctl gpus`, as a terminal gets them, while two runs are at work and a third has ended."""
    picture = _Picture("gpuctl ps · gpuctl gpus", TABLE_COLUMNS)
    with _node_at_work() as environment:
        for words in (["ps"], ["gpus"]):
            picture.prompt(f"gpuctl {' '.join(words)}")
            for line in _on_terminal(words, environment).splitlines():
                picture.line(Text.from_ansi(line.rstrip()))
    return picture.save(folder / "node.svg")


class _Picture:
    def __init__(self, title: str, columns: int) -> None:
        self._title = title
        self._console = Console(record=True, width=columns, file=StringIO(), color_system="truecolor")

    def prompt(self, command: str) -> None:
        self._console.print(Text.assemble(("$ ", "green"), (command, "bold")), soft_wrap=True)

    def line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, crop=False, highlight=False)

    def save(self, path: Path) -> Path:
        drawn = self._console.export_svg(title=self._title, unique_id="gpuctl")
        drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # a picture fetches nothing from anywhere
        path.write_text(drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"), encoding="utf-8")
        return path


@contextmanager
def _node_at_work() -> Iterator[dict[str, str]]:
    """A node of its own with runs on it, which are ended afterwards; the environment that reaches it."""
    with tempfile.TemporaryDirectory(prefix="gpuctl-picture-") as made:
        folder = Path(made)
        (folder / "inventory.yaml").write_text(INVENTORY.format(folder=folder))
        environment = _environment(
            GPUCTL_HOME=str(folder / "home"), GPUCTL_INVENTORY=str(folder / "inventory.yaml"),
            COLUMNS=str(TABLE_COLUMNS), TERM="xterm-256color",
        )  # fmt: skip
        runs = []
        try:
            vocabulary = _launch(environment, [str(JOBS / "eagle3-vocab-sim.yaml")])
            sets = ["--set", "max_seq_len=16384", "--set", "max_steps=100000"]
            runs.append(_launch(environment, [str(JOBS / "eagle3-train-sim.yaml"), *sets]))
            runs.append(_launch(environment, ["--on", "sim", "--gpus", "1", "--name", "eval", "--", *HOLD]))
            _json(environment, ["wait", "--json", vocabulary])
            deadline = time.monotonic() + PATIENCE_S
            while _busy_gpus(environment) < 5:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the runs are not at work: {_json(environment, ['ps', '--json'])}")
                time.sleep(0.2)
            yield environment
        finally:
            for run in runs:
                _json(environment, ["kill", "--yes", "--grace", "1s", "--json", run])


def _busy_gpus(environment: dict[str, str]) -> int:
    """How many GPUs hold what a step needs, not only what a start takes."""
    rows = _json(environment, ["gpus", "--json"])
    return sum((row["memory_used_mib"] or 0) > 10_000 for row in rows)


def _launch(environment: dict[str, str], words: list[str]) -> str:
    return str(_json(environment, ["launch", "--json", *words])["run"])


def _json(environment: dict[str, str], words: list[str]) -> Any:
    done = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gpuctl {shlex.join(words)} → {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def _on_terminal(words: list[str], environment: dict[str, str]) -> str:
    """What it prints on a terminal, without what it narrates."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    ):
        os.close(theirs)
        data = b""
        while piece := _read(ours):
            data += piece
    os.close(ours)
    return data.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # a terminal's other end has closed
        return b""


def _environment(**own: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")} | own


if __name__ == "__main__":
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    draw_demo(into)
    draw_node(into)
