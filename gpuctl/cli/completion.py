"""Completion in the shell: of runs (by the store's copy) and nodes (by the inventory); its installation."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from gpuctl.errors import GpuctlError, UsageError

_RC = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}


def install() -> str:
    """Puts completion into the start file of the shell that runs us, once. What was done, in words."""
    import shellingham  # type: ignore[import-untyped]  # here: only installation needs it

    try:
        shell, _path = shellingham.detect_shell()
    except shellingham.ShellDetectionFailure:
        raise UsageError("can't tell which shell this is", "start it from bash, zsh or fish") from None
    kind = get_completion_class(shell)
    if kind is None or shell not in _RC:
        raise UsageError(f"no completion for {shell}", f"there is one for {', '.join(_RC)}")
    from gpuctl.cli.program import program  # here: that module imports this one's callers

    script = kind(program, {}, "gpuctl", "_GPUCTL_COMPLETE").source()
    folder = Path("~/.config/gpuctl").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"completion.{shell}"
    target.write_text(script)
    start = Path(_RC[shell]).expanduser()
    source = f"source {target}"
    before = start.read_text() if start.exists() else ""
    if source not in before.splitlines():
        start.parent.mkdir(parents=True, exist_ok=True)
        with start.open("a") as file:
            file.write(f"\n# gpuctl's completion\n{source}\n")
    return f"completion for {shell} is in {target}, sourced by {start}; it works in the next shell"


def runs(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    from gpuctl.store import Store  # here: completion alone needs it

    try:
        return Store.open().runs_starting(begun)
    except GpuctlError:
        return []


def nodes(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    from gpuctl.spec.inventory import find_inventory, load_inventory  # here: completion alone needs it

    try:
        found = find_inventory(ctx.find_root().obj)
        return [name for name in load_inventory(found.path).nodes if name.startswith(begun)]
    except GpuctlError:
        return []
