"""`gpuctl replay`: a recorded run through today's rules, and another policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from gpuctl.agent import Agent
from gpuctl.cli import completion, options, output, sentences
from gpuctl.errors import NotFound
from gpuctl.fleet.runs import find
from gpuctl.places import state_folder
from gpuctl.spec.inventory import Node
from gpuctl.spec.policyfile import load_policy
from gpuctl.transport import open_transport


@click.command(
    "replay", epilog="Examples: gpuctl replay eagle3-train; gpuctl replay ./eagle3-train-k3x9q2 --policy stricter.yaml"
)
@click.argument("what", metavar="[RUN|FOLDER]", required=False, shell_complete=completion.runs)
@click.option(
    "--policy", metavar="FILE", type=click.Path(path_type=Path), help="A job file, or some of its keys, to judge by."
)
@options.as_json
@options.inventory
def command(what: str | None, policy: Path | None, as_json: bool) -> int:
    """Judge a recorded run again, by today's rules and another policy; say what would be done.

    Logs, samples and exits are kept with each run for this. Nothing is done, nothing is written.
    """
    changes = load_policy(policy) if policy is not None else {}
    if what is not None and Path(what).is_dir():
        return options.performed(_folder(Path(what).resolve(), changes, as_json))
    if what is not None and "/" in what:
        raise NotFound(f"{what}: there is no such folder", "name a run, or a copy of a run's folder")
    return options.performed(_run(what, changes, as_json))


async def _run(word: str | None, changes: Mapping[str, Any], as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        found = await find(fleet, store, word)
        with output.doing(f"replaying {found.run}"):
            told = await fleet.agent(found.node).replay(run=found.run, changes=changes)
    return _show(told, as_json)


async def _folder(folder: Path, changes: Mapping[str, Any], as_json: bool) -> int:
    """By this machine's own agent: what reads a run's folder on a node reads it here."""
    here = Node(name="here", transport="local", state_dir=str(state_folder() / "here"))
    transport = open_transport(here)
    try:
        with output.doing(f"replaying {folder}"):
            told = await Agent(here, transport).replay(folder=str(folder), changes=changes)
    finally:
        await transport.aclose()
    return _show(told, as_json)


def _show(told: dict[str, Any], as_json: bool) -> int:
    if as_json:
        output.document(told)
        return 0
    for line in _lines(told):
        output.line(line)
    return 0


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    other = False
    for attempt in told["attempts"]:
        was, now = attempt["was"], attempt["now"]
        values = sentences.params(attempt["params"])
        yield f"attempt {attempt['attempt']}{f': {values}' if values else ''}"
        yield f"  was  {'asked for: ' if was['asked'] else ''}{_outcome(was)}"
        early = f", {sentences.duration(now['after_s'])} after its start" if now["after_s"] is not None else ""
        yield f"  now  {_outcome(now, early)}" if attempt["differs"] else "  now  the same"
        if attempt["differs"]:
            yield from (f"       line {item['line']}: {item['text']}" for item in now["evidence"][:1])
        if now["findings"]:
            yield f"       told on the way: {', '.join(now['findings'])}"
        other = other or attempt["differs"]
    yield "it would have gone another way" if other else "it would have gone the same way"
    for name in told["missing"]:
        output.warn(f"{name} is not there any more, and was not read")


def _outcome(part: Mapping[str, Any], early: str = "") -> str:
    """What was found, and what followed."""
    found = f"{part['class']}{early} → " if part["class"] else ""
    if part["action"] is None:
        return f"{found}it goes on"
    if part["action"] == "relaunch":
        values = sentences.params(part["params"])
        return f"{found}relaunched{f' with {values}' if values else ''}{_because(part)}"
    return f"{found}{part['state']}{_because(part)}"


def _because(part: Mapping[str, Any]) -> str:
    return f" ({part['why']})" if part["why"] else ""
