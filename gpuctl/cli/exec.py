"""`gpuctl exec`: a command on many nodes at once."""

from __future__ import annotations

import sys

import click

from gpuctl.agent import Agent
from gpuctl.cli import completion, options, output
from gpuctl.cli.ps import told
from gpuctl.errors import UsageError
from gpuctl.fleet.fleet import Answer
from gpuctl.transport import Completed, run

_DEADLINE_S = 600.0


@click.command(
    "exec",
    cls=options.After,
    epilog="Example: gpuctl exec label=blackwell -- nvidia-smi -L. The words after -- arrive as they stand; "
    "for a pipe or a variable of the node: -- sh -c '…'",
)
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=completion.nodes)
@click.option("--timeout", type=options.Duration(), default=_DEADLINE_S, metavar="10m", help="End it after that.")
@options.as_json
@options.inventory
def command(nodes: tuple[str, ...], argv: list[str], timeout: float, as_json: bool) -> int:
    """Run CMD on each NODE; exit code 0 if it succeeded on all, 1 otherwise.

    One node's output comes as it is, that of several with the node's name before each line.
    """
    if not argv:
        raise UsageError("what to run?", "put the command after --: gpuctl exec NODE -- CMD")
    return options.performed(_exec(nodes, argv, timeout, as_json))


async def _exec(words: tuple[str, ...], argv: list[str], deadline_s: float, as_json: bool) -> int:
    async def one(agent: Agent) -> Completed:
        return await run(agent.transport, argv, deadline_s=deadline_s)

    done: list[Answer[Completed]] = []
    async with options.opened() as (fleet, _store):
        nodes = options.chosen(fleet.inventory, words)
        async for answer in fleet.asking(nodes, one):
            done.append(answer)
            if answer.value is not None and not as_json:
                _show(answer.node.name if len(nodes) > 1 else None, answer.value)
    if as_json:
        output.document([_facts(answer.node.name, answer.value) for answer in done if answer.value is not None])
    failed = [answer for answer in done if answer.value is not None and answer.value.exit_code]
    for answer in failed:
        if answer.value is not None:
            output.note(f"{answer.node.name}: exit code {answer.value.exit_code}")
    unreached = told([answer.error for answer in done if answer.error is not None])
    return unreached or (1 if failed else 0)


def _facts(node: str, done: Completed) -> dict[str, object]:
    return {
        "node": node,
        "exit_code": done.exit_code,
        "stdout": done.stdout.decode(errors="replace"),
        "stderr": done.stderr.decode(errors="replace"),
    }


def _show(node: str | None, done: Completed) -> None:
    if node is None:
        output.raw(done.stdout)
        output.raw(done.stderr, to=sys.stderr)
        return
    for line in done.stdout.decode(errors="replace").splitlines():
        output.line(f"{node}: {line}")
    for line in done.stderr.decode(errors="replace").splitlines():
        output.note(f"{node}: {line}")
