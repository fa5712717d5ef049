"""`gpuctl clean`: ends orphans of our runs that still use a node's GPUs, and names everything else that does."""

from __future__ import annotations

from typing import Any

import click

from gpuctl.agent import Agent
from gpuctl.cli import completion, options, output, sentences
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.gpus import holder_words
from gpuctl.errors import UsageError
from gpuctl.spec.inventory import Node
from gpuctl.spec.render import parse_gpus
from gpuctl.wire.replies import CleanReport


@click.command("clean", epilog="Example: gpuctl clean gpu1 --dry-run. Live runs are never touched.")
@click.argument("node", shell_complete=completion.nodes)
@click.option("--gpus", metavar="I,J", help="Only these GPUs ([2], 0,1); else all that are ours to use.")
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option(
    "--force",
    is_flag=True,
    help="Also end your own user's other processes that hold memory there; never a protected one or another user's.",
)
@options.yes
@options.as_json
@options.inventory
def command(node: str, gpus: str | None, **how: bool) -> int:
    """End what is provably an orphan of our runs and still uses the GPUs, spare the rest, verify that they are empty.

    Exit code 1 if they are not empty.
    """
    return options.performed(_clean(node, _indices(gpus), **how))


def _indices(gpus: str | None) -> list[int] | None:
    wanted = parse_gpus(f"[{gpus}]" if gpus and gpus.isdigit() else gpus) if gpus else None
    if wanted is not None and wanted != "all" and not isinstance(wanted, list):
        raise UsageError(f"--gpus {gpus}: expected which GPUs, such as 0,1 or all")
    return wanted if isinstance(wanted, list) else None


async def _clean(name: str, gpus: list[int] | None, *, dry_run: bool, force: bool, yes: bool, as_json: bool) -> int:
    async with options.opened() as (fleet, _store):
        node = fleet.inventory.node(name)
        agent = fleet.agent(node)
        asking = force and not dry_run and not yes and output.on_terminal()
        agreed = await _agreed(agent, gpus) if asking else None
        with output.doing(f"cleaning {node.name}"):
            report = await agent.clean(gpus=gpus, dry_run=dry_run, force=force, only=agreed)
    if as_json:
        output.document({"node": node.name, **report.to_json()})
    else:
        _show(report)
    return _verdict(node, report)


async def _agreed(agent: Agent, gpus: list[int] | None) -> list[tuple[int, int]]:
    """What the person was shown and agreed to: these processes, not whatever else is there by then."""
    planned = await agent.clean(gpus=gpus, dry_run=True, force=True)
    if planned.killed:
        _show(planned)
        if not output.ask("end these?"):
            output.note("nothing was done")
            raise Interrupted
    return [(holder.pid, holder.start) for holder in planned.killed]


def _show(report: CleanReport) -> None:
    doing = "would end" if report.dry_run else "ended"
    for holder in report.killed:
        of = f", of {holder.ours}" if holder.ours else ""
        output.line(f"{doing} {holder_words(holder)}{of}: {holder.command}")
    for spared in report.spared:
        output.line(f"spared {_spared(spared)}")
    if report.empty and not report.dry_run:
        output.line(f"empty, verified after {sentences.duration(report.after_s)}")
    elif not report.killed and report.dry_run:
        output.note("nothing to end")


def _spared(spared: dict[str, Any]) -> str:
    return f"{spared.get('name')} (pid {spared.get('pid')}, {spared.get('user')}): {spared.get('why')}"


def _verdict(node: Node, report: CleanReport) -> int:
    if report.dry_run or report.empty:
        return 0
    used = ", ".join(f"GPU {index} {mib} MiB" for index, mib in report.memory_mib.items() if mib)
    why = report.why or report.failure or "their memory can't be read"
    output.error(f"{node.name}: its GPUs are not empty: {why}", used)
    return 1
