"""`gpuctl cp`: files and folders to, from and between nodes and runs; verified at both ends."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import Any

import click

from gpuctl.agent.copying import Copied, Place, copy
from gpuctl.cli import options, output, sentences
from gpuctl.errors import UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.runs import find
from gpuctl.places import state_folder
from gpuctl.spec.inventory import Node
from gpuctl.store import Store

_REMOTE = re.compile(r"([^/:]+):(.*)", re.DOTALL)  # as scp reads it: ./a:b is a file here


@click.command(
    "cp", epilog="Examples: gpuctl cp data.tar gpu1:data/; gpuctl cp eagle3-train:checkpoints/ . (from its workdir)"
)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("target", metavar="DST")
@options.as_json
@options.inventory
def command(sources: tuple[str, ...], target: str, as_json: bool) -> int:
    """Copy files and folders; each SRC and DST is NODE:path, RUN:path (from its workdir) or a path here.

    What arrives takes its place only once both ends agree on its SHA-256: a cut connection leaves no half file.
    """
    return options.performed(_cp(sources, target, as_json))


async def _cp(sources: tuple[str, ...], target: str, as_json: bool) -> int:
    for source in sources:
        if not _REMOTE.fullmatch(source) and not os.path.lexists(source):  # noqa: ASYNC240 - before anything else runs
            raise UsageError(f"{source}: there is no such file here", "a path elsewhere is NODE:path or RUN:path")
    done: list[dict[str, Any]] = []
    async with options.opened() as (fleet, store):
        into = await _place(fleet, store, target if len(sources) == 1 or target.endswith((":", "/")) else f"{target}/")
        for source in sources:
            place = await _place(fleet, store, source)
            with output.counting(f"copying {source}") as told:
                copied = await copy(place, into, told=told)
            done.append({"source": source, "target": target, **asdict(copied)})
            if not as_json:
                _tell(source, copied)
    if as_json:
        output.document(done)
    return 0


async def _place(fleet: Fleet, store: Store, word: str) -> Place:
    """A name with a colon is a node, else a run; everything else is a path on this machine."""
    remote = _REMOTE.fullmatch(word)
    if remote is None:
        return Place(fleet.agent(_here()), _absolute(word))
    name, path = remote[1], remote[2]
    if name in fleet.inventory.nodes:
        return Place(fleet.agent(fleet.inventory.node(name)), path or "~/")
    found = await find(fleet, store, name)
    if found.run != name:  # a prefix or a job's name chose it: also a slip of the finger can
        output.note(f"{name}: is run {found.run} on {found.node.name}; a file of that name here would be ./{word}")
    return Place(fleet.agent(found.node), path or "./", found.run)


def _absolute(word: str) -> str:
    """A trailing slash says that a folder is meant, and stays."""
    if not word:
        raise UsageError("an empty path", "name a file or folder")
    return os.path.abspath(word) + ("/" if word.endswith("/") and word != "/" else "")  # noqa: PTH100 - Path drops it


def _here() -> Node:
    """This machine as a node; its name can't be one of the inventory's."""
    return Node(name="(here)", transport="local", state_dir=str(state_folder() / "here"))


def _tell(source: str, copied: Copied) -> None:
    files = f"{copied.files} files" if copied.files != 1 else "1 file"
    output.note(f"{source}: {files}, {sentences.size(copied.file_bytes)}, verified")
    for path in copied.skipped:
        output.warn(f"{path} is neither a file nor a folder and was left out")
