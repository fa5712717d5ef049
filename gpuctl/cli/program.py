"""The `gpuctl` command: its sub-commands by name, each imported only when it is called.

`gpuctl --help` and `--version` import none of them, so that they answer at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from gpuctl import __version__
from gpuctl.cli import failures, output

COMMANDS = {
    "launch": "Start a run of a job and return at once.",
    "ps": "Show live runs and those that ended lately.",
    "tail": "Show a run's log, byte for byte.",
    "events": "Show what happened to a run: attempts, incidents, actions.",
    "wait": "Wait until runs end.",
    "kill": "End runs, then wait until their GPUs are empty.",
    "relaunch": "End the current attempt and start the next, with new values.",
    "attach": "Look at a run's tmux view.",
    "explain": "Say why a run or a log failed, and what to do about it.",
    "fit": "Find the largest value of a parameter that fits.",
    "history": "Show past runs: what fitted, what did not, what failures cost.",
    "replay": "Judge a recorded run again, by today's rules and another policy.",
    "gpus": "Show each GPU's memory, power and users.",
    "clean": "End orphans of our runs that still use a node's GPUs.",
    "nodes": "Show the inventory's nodes.",
    "doctor": "Check nodes end to end and say how to mend what is missing.",
    "exec": "Run a command on many nodes at once.",
    "cp": "Copy files to and from nodes and runs.",
    "rm": "Remove ended runs' folders.",
    "prune": "Remove old runs' folders and unused bundles.",
    "trust": "Accept a node's host key.",
    "schema": "Print the JSON Schema of job files or inventories.",
    "demo": "The whole story on simulated GPUs, in half a minute.",
}

OUR_WORDS = {
    "logs": "tail",
    "log": "tail",
    "status": "ps",
    "stop": "kill",
    "cancel": "kill",
    "submit": "launch",
    "run": "launch",
    "queue": "ps",
    "restart": "relaunch",
}
"""What people may type out of another tool's habit: they are told our word."""


class Program(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"gpuctl.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0] if args else ""
        if word in OUR_WORDS and not ctx.resilient_parsing:
            ours = OUR_WORDS[word]
            raise click.UsageError(f"no command {word!r}: gpuctl's word for it is `gpuctl {ours}`", ctx)
        if word not in COMMANDS and not word.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(word, COMMANDS, n=1)
            raise click.UsageError(
                f"no command {word!r}" + (f"; did you mean `gpuctl {near[0]}`?" if near else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _install_completion(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from gpuctl.cli.completion import install  # here: hardly ever needed

    output.note(install())
    ctx.exit(0)


@click.command(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="A first minute: `gpuctl demo`. A first job: `gpuctl launch --on NODE --gpus 1 -- python train.py`.",
)
@click.version_option(__version__, prog_name="gpuctl", message="%(prog)s %(version)s")
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The inventory; else $GPUCTL_INVENTORY, ./inventory.yaml, ~/.config/gpuctl/inventory.yaml.",
)
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Install completion for your shell.",
)
@click.pass_context
def program(ctx: click.Context, inventory: Path | None) -> None:
    """Launches jobs on GPU machines, watches them there, and relaunches what ran out of memory."""
    ctx.obj = inventory


def run(args: Sequence[str]) -> int:
    """The command line `gpuctl ARGS…`; the exit code."""
    output.prepare()
    return failures.reported(lambda: program.main(list(args), prog_name="gpuctl", standalone_mode=False))
