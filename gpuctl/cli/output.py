"""Owns stdout and stderr: stdout is data, stderr is narration. Nothing else in gpuctl prints.

What nodes and jobs say (names, reasons, log lines) passes through `printable` before it reaches a terminal, so that no
log can move the cursor or retitle the window. rich is imported only for a table or a spinner on a terminal: in a pipe,
tables are plain columns, nothing is cut, and there is no progress.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from gpuctl.cli.logview import LogView

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_1 = re.compile(r"[\x7f-\x9f]")
_STYLES = {
    "succeeded": "green", "running": "cyan", "loading": "cyan", "starting": "cyan", "queued": "blue",
    "cleaning": "yellow", "relaunching": "yellow", "failed": "red", "blocked": "red", "lost": "red",
    "killed": "magenta",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """What a command shows to people. Cells are text; None is shown as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    empty: str = ""  # said on stderr where there are no rows


def prepare() -> None:
    """A name that the terminal's encoding lacks is shown with a mark in its place, never a traceback. Where stdout or
    stderr was closed by whoever started us, what we say goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for as long as we live
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """`text` without what a terminal would obey; newlines and tabs stay."""
    return _CONTROL.sub("", text)


def line(text: str) -> None:
    """One line of data."""
    print(printable(text) if sys.stdout.isatty() else text, flush=True)


def to_terminal() -> bool:
    """Whether a person sees stdout as it comes."""
    return sys.stdout.isatty()


def text(piece: str) -> None:
    """A piece of text as it is, which `logview` made harmless."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def raw(data: bytes, *, to: TextIO | None = None) -> None:
    """Data byte for byte, to stdout if nothing else is said."""
    stream = to or sys.stdout
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


def foreign(data: bytes, *, to: TextIO | None = None) -> None:
    """All that a command on a node has said: byte for byte, on a terminal without what that would obey."""
    stream = to or sys.stdout
    if not stream.isatty():
        raw(data, to=to)
        return
    stream.write(LogView().shown(data, final=True))
    stream.flush()


def document(value: Any) -> None:
    """The one JSON document that `--json` promises."""
    print(_harmless(json.dumps(value, indent=2, ensure_ascii=False)), flush=True)


def json_line(value: Mapping[str, Any]) -> None:
    print(_harmless(json.dumps(value, ensure_ascii=False)), flush=True)


def _harmless(text: str) -> str:
    """The same JSON; json.dumps escapes the control characters below a space, a terminal obeys others too."""
    return _CONTROL_1.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def note(text: str) -> None:
    """Narration: what is going on, what may be of use."""
    _say(text)


def warn(text: str) -> None:
    _say(f"warning: {text}", "33")


def error(what: str, hint: str = "") -> None:
    """What is wrong and where; then what to do about it."""
    _say(f"gpuctl: {what}", "31")
    if hint:
        _say(f"  {hint}")


def _say(text: str, colour: str = "") -> None:
    text = printable(text)
    if colour and sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = f"\x1b[{colour}m{text}\x1b[0m"
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def table(shown: Table) -> None:
    if not shown.rows:
        if shown.empty:
            note(shown.empty)
        return
    rows = [["–" if cell is None else printable(cell) for cell in row] for row in shown.rows]
    if sys.stdout.isatty():
        _rich_table(shown.columns, rows)
    else:
        _plain_table(shown.columns, rows)


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    flat = [[cell.replace("\n", " ") for cell in row] for row in ([name.upper() for name in columns], *rows)]
    widths = [max(len(row[at]) for row in flat) for at in range(len(columns))]
    for row in flat:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # here: 45 ms that a pipe does not need
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        grid.add_column(name.upper(), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(grid)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """A spinner on stderr while something takes its time; nothing of it in a pipe."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield
        return
    from rich.console import Console  # here: only a terminal pays for it

    with Console(stderr=True).status(printable(what)):
        yield


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """A count of bytes on stderr, which the block tells how many have passed; nothing of it in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console  # here: only a terminal pays for it
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda passed: bar.update(task, completed=passed)


def ask(question: str) -> bool:
    """A yes or no from the person at the terminal; anything but yes is no."""
    sys.stdout.flush()
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def on_terminal() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()
