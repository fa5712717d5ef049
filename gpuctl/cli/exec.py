"""`gpuctl exec`: a command on many nodes at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from gpuctl.agent import Agent
from gpuctl.cli import completion, options, output
from gpuctl.cli.ps import told
from gpuctl.errors import CommandOverdue, UsageError
from gpuctl.fleet.fleet import Answer
from gpuctl.transport import run

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
    """Run CMD on each NODE; exit code 0 if it succeeded on all, 1 otherwise (4: a node can't be reached).

    One node's output comes as it is, that of several with the node's name before each line.
    """
    if not argv:
        raise UsageError("what to run?", "put the command after --: gpuctl exec NODE -- CMD")
    return options.performed(_exec(nodes, argv, timeout, as_json))


@dataclass(frozen=True)
class Outcome:
    """What became of the command on one node. `exit_code` None: it did not end in time, and was ended."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes

    def to_json(self, node: str) -> dict[str, object]:
        return {
            "node": node,
            "exit_code": self.exit_code,
            "timed_out": self.exit_code is None,
            "stdout": self.stdout.decode(errors="replace"),
            "stderr": self.stderr.decode(errors="replace"),
        }


async def _exec(words: tuple[str, ...], argv: list[str], limit_s: float, as_json: bool) -> int:
    async def one(agent: Agent) -> Outcome:
        try:
            done = await run(agent.transport, argv, deadline_s=limit_s)
        except CommandOverdue as overdue:  # the command's fault, not the node's
            return Outcome(None, overdue.stdout, overdue.stderr)
        return Outcome(done.exit_code, done.stdout, done.stderr)

    done: list[Answer[Outcome]] = []
    async with options.opened() as (fleet, _store):
        nodes = options.chosen(fleet.inventory, words)
        async for answer in fleet.asking(nodes, one):
            done.append(answer)
            if answer.value is not None and not as_json:
                _show(answer.node.name if len(nodes) > 1 else None, answer.value)
    ended = [(answer.node.name, answer.value) for answer in done if answer.value is not None]
    if as_json:
        output.document([outcome.to_json(node) for node, outcome in ended])
    for node, outcome in ended:
        if outcome.exit_code is None:
            output.note(f"{node}: {argv[0]} did not end within {limit_s:g} s, and was ended (--timeout)")
        elif outcome.exit_code:
            output.note(f"{node}: exit code {outcome.exit_code}")
    unreached = told([answer.error for answer in done if answer.error is not None])
    return unreached or (1 if any(outcome.exit_code != 0 for _node, outcome in ended) else 0)


def _show(node: str | None, done: Outcome) -> None:
    if node is None:
        output.foreign(done.stdout)
        output.foreign(done.stderr, to=sys.stderr)
        return
    for line in done.stdout.decode(errors="replace").splitlines():
        output.line(f"{node}: {line}")
    for line in done.stderr.decode(errors="replace").splitlines():
        output.note(f"{node}: {line}")
