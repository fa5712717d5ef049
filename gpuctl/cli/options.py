"""What many commands share: their options and arguments, and the opening of inventory, store and fleet."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuctl.cli import completion, output
from gpuctl.fleet.fleet import Fleet
from gpuctl.spec.durations import seconds
from gpuctl.spec.inventory import Inventory, Node, find_inventory, load_inventory
from gpuctl.store import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Duration(click.ParamType[float]):
    """`12h`, `1h30m`, `30s`, as in job files; seconds in the program."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
yes = click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
inventory = click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    metavar="FILE",
    expose_value=False,
    hidden=True,
    callback=lambda ctx, _param, value: _remember(ctx, value),
    help="The inventory, as before the command.",
)
run = click.argument("run", required=False, shell_complete=completion.runs)
runs = click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=completion.runs)
nodes = click.argument("nodes", metavar="[NODE]...", nargs=-1, shell_complete=completion.nodes)


def _remember(ctx: click.Context, value: Path | None) -> None:
    if value is not None:
        ctx.find_root().obj = value


class After(click.Command):
    """A command whose own words end at the first `--`; what follows arrives as `argv`, untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["argv"] = args[cut + 1 :]
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- CMD [ARG]...]"]


def performed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a command's asynchronous body. Ctrl-C cancels it: it closes what it opened, then KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which asyncio replaces by its own while this runs
    return asyncio.run(coroutine)


def read_inventory() -> Inventory:
    """The inventory that this command line means; says so where a file was passed over."""
    ctx = click.get_current_context()
    found = find_inventory(ctx.find_root().obj)
    for told in found.notes:
        output.note(told)
    return load_inventory(found.path)


@asynccontextmanager
async def opened(inventory: Inventory | None = None) -> AsyncIterator[tuple[Fleet, Store]]:
    """The fleet and the store, closed afterwards."""
    store = Store.open()
    try:
        async with Fleet(inventory or read_inventory()) as fleet:
            yield fleet, store
    finally:
        if store.trouble:
            output.warn(store.trouble)
        store.close()


def chosen(inventory: Inventory, words: Sequence[str]) -> list[Node]:
    """The nodes that the words name (`a`, `a,b`, `label=value`), each once; none: all of them."""
    if not words:
        return list(inventory.nodes.values())
    found = [node for word in words for node in inventory.select(word)]
    return list({node.name: node for node in found}.values())
