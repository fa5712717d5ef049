"""From a job's exit by out-of-memory to the relaunched process: on the real GPU where there is one, else simulated."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuctl.wire.runspec import OnOom
from tests.parts.node import TestNode, node

TRAIN = Path(__file__).parent.parent / "gpu" / "train.py"
TENSOR = "from gpuctl.simulation.cuda import Gpu; import sys; Gpu(0).allocate('x', int(sys.argv[1]) << 20)"


def measure() -> Iterator[tuple[str, str]]:
    real = Path("/dev/nvidiactl").exists()
    with tempfile.TemporaryDirectory() as folder, node(Path(folder), **({"simulate": None} if real else {})) as made:
        if real:
            command, first = f"{sys.executable} {TRAIN} --batch-size {{size}} --steps 2", 4000
        else:
            command, first = f'{sys.executable} -c "{TENSOR}" {{size}}', 1_500_000
        on_oom = OnOom(reduce=["size"], factor=0.5, max_relaunches=8)
        made.start(made.job(command, gpus=1, params={"size": first}, on_oom=on_oom))
        made.wait_over(within_s=280)
        yield "the run", made.life().state
        steps = _steps(made)
        for name in ("exit → seen", "exit → empty", "exit → relaunched process"):
            values = [step[name] for step in steps]
            yield (
                f"{name}, {len(values)} relaunches",
                (f"median {statistics.median(values):.3f} s, at most {max(values):.3f} s"),
            )


def _steps(made: TestNode) -> list[dict[str, float]]:
    """Per relaunch, seconds from the exit as the keeper saw it."""
    found = []
    for number in range(1, made.life().attempt or 1):
        path = made.state_dir / f"runs/job-1/attempts/{number}/exit.json"
        ended = json.loads(path.read_text())["ended_mono_s"]
        events = [event for event in made.events() if event.get("attempt") in (number, number + 1)]

        def first(type: str, after: float = ended, events: list[dict[str, float]] = events) -> float:
            return next(
                event["mono_s"] - after for event in events if event["type"] == type and event["mono_s"] > after
            )

        found.append({
            "exit → seen": first("attempt_exited"),
            "exit → empty": first("gpus_empty"),
            "exit → relaunched process": first("attempt_started"),
        })  # fmt: skip
    return found
