"""`gpuctl demo`: a job runs out of memory, is diagnosed, cleaned up, verified and relaunched until it succeeds.

Nothing in it is faked but the GPUs: it launches the simulated twin of a real job by the same code as `gpuctl launch`,
and each line that it prints comes from the run's journal. Inventory, state and outputs are in a temporary folder, which
is gone afterwards, with whatever still runs in it.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import gpuctl
from gpuctl.agent import Agent
from gpuctl.cli import options, output, sentences
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.following import ended_well, lost, until_ended
from gpuctl.cli.launch import Launch, Wish
from gpuctl.errors import GpuctlError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.follow import follow_request
from gpuctl.fleet.launching import LaunchInterrupted
from gpuctl.fleet.who import whoami
from gpuctl.spec.inventory import Inventory, Node, Simulate
from gpuctl.spec.job import Job, load_job
from gpuctl.spec.render import new_run_id
from gpuctl.store import Store
from gpuctl.wire.requests import Request

_JOB = "eagle3-extract-sim.yaml"
_STORY = """\
Hidden-state extraction: a model that takes 91 of 95 GiB on each of 8 GPUs, given --batch-size 2000 by mistake.
Simulated GPUs, real processes; each line below is from the run's journal."""


@click.command(
    "demo", epilog="Example: gpuctl demo. The same by hand: gpuctl launch jobs/eagle3-extract-sim.yaml --follow"
)
@options.as_json
def command(as_json: bool) -> int:
    """Show the whole story on simulated GPUs: out of memory, diagnosed, cleaned up, relaunched until it succeeds."""
    with _stage() as folder:
        return options.performed(_demo(folder, as_json))


@contextmanager
def _stage() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuctl-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _node(folder: Path) -> Node:
    return Node(
        name="sim",
        transport="local",
        state_dir=str(folder / "node"),
        lock_dir=str(folder / "locks"),
        simulate=Simulate(gpus=8, memory_mib=97887, power_limit_w=600, model="RTX PRO 6000 Blackwell"),
    )


def _job(folder: Path) -> Job:
    """The twin, at work in the temporary folder."""
    work = folder / "work"
    work.mkdir()
    return load_job(_jobs() / _JOB).model_copy(update={"workdir": str(work)})


def _jobs() -> Path:
    """The job files: in the package where it was installed, beside it in a checkout."""
    package = Path(gpuctl.__file__).parent
    for folder in (package / "jobs", package.parent / "jobs"):
        if (folder / _JOB).exists():
            return folder
    raise GpuctlError(f"{_JOB} is missing from this installation", "install gpuctl anew, or run it from a checkout")


async def _demo(folder: Path, as_json: bool) -> int:
    node = _node(folder)
    if not as_json:
        output.note(_STORY)
    store = Store.open(folder / "home")
    try:
        async with Fleet(Inventory(folder / "inventory.yaml", {node.name: node})) as fleet:
            job = _job(folder)
            run = new_run_id(job.name)
            agent = fleet.agent(node)
            try:
                await Launch(fleet, store, job, Wish(), as_json).on(node, run, [])
                finished = await until_ended(agent, run, heard=_printer(as_json))
            except (asyncio.CancelledError, LaunchInterrupted):
                output.note("interrupted; ending the run and removing what it left")
                await _end(agent, run)
                raise Interrupted from None
            except GpuctlError:
                with suppress(GpuctlError):  # the first error is the one to tell
                    await _end(agent, run)
                raise
            await _verdict(agent, finished)
    finally:
        store.close()
    return 0 if ended_well(finished) else 1


def _printer(as_json: bool) -> Any:
    if as_json:
        return output.json_line
    return lambda event: output.line(sentences.event_line(event))


async def _verdict(agent: Agent, finished: dict[str, Any] | None) -> None:
    used = {row.device.index: row.device.memory_used_mib for row in (await agent.gpus()).devices}
    told = "all of them at 0 MiB" if not any(used.values()) else f"in use: {used} MiB"
    output.note(f"{finished.get('state') if finished else 'not ended'}; GPUs {sentences.gpus(list(used))}: {told}")


async def _end(agent: Agent, run: str) -> None:
    """However far it came."""
    if not await agent.ps(runs=[run]):
        return
    request = Request(id=uuid.uuid4().hex, kind="kill", by=whoami(), grace_s=1.0)
    async with aclosing(follow_request(agent, run, request, lost=lost)) as events:
        async for _event in events:
            pass
