"""`gpuctl doctor`: checks nodes end to end, from here to their GPUs, and says how to mend what is missing."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from gpuctl.cli import options, output
from gpuctl.cli.checkup import Finding, findings
from gpuctl.fleet.fleet import Answer
from gpuctl.places import state_folder

_DEADLINE_S = 180.0  # a first contact uploads the bundle; a first reading may take long
_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command(
    "doctor", epilog="Example: gpuctl doctor gpu1. Reads only: nothing is changed, but that the agent is sent there."
)
@options.nodes
@options.as_json
@options.inventory
def command(nodes: tuple[str, ...], as_json: bool) -> int:
    """Check each NODE end to end and say how to mend what is missing; left out: all nodes.

    Exit code 0 if nothing fails, 1 if something does, 4 if a node can't be reached.
    """
    return options.performed(_doctor(nodes, as_json))


async def _doctor(words: tuple[str, ...], as_json: bool) -> int:
    reports: list[tuple[str, list[Finding]]] = [("here", _here())]
    codes: list[int] = []
    async with options.opened() as (fleet, _store):
        chosen = options.chosen(fleet.inventory, words)
        with output.doing("examining the nodes"):
            answers = await fleet.ask(chosen, lambda agent: agent.probe(), deadline_s=_DEADLINE_S)
    for answer in answers:
        reports.append((answer.node.name, _report(answer)))
        if answer.error is not None:
            codes.append(answer.error.exit_code)
    if as_json:
        output.document([
            {"node": name, "checks": [asdict(finding) for finding in found], "facts": _facts(name, answers)}
            for name, found in reports
        ])  # fmt: skip
    else:
        for name, found in reports:
            _show(name, found)
    failed = any(finding.verdict == "fail" for _name, found in reports for finding in found)
    return max([*codes, 1 if failed else 0])


def _here() -> list[Finding]:
    folder = state_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        return [
            Finding("warn", f"{folder} can't be written: no record of what was launched from here", "set GPUCTL_HOME")
        ]
    return [Finding("ok", f"state in {folder}")]


def _report(answer: Answer[dict[str, Any]]) -> list[Finding]:
    if answer.value is None:
        error = answer.error
        return [Finding("fail", error.what if error else "no answer", error.hint if error else "")]
    return [Finding("ok", "reached; the agent is there and answers"), *findings(answer.node, answer.value)]


def _facts(name: str, answers: list[Answer[dict[str, Any]]]) -> dict[str, Any] | None:
    return next((answer.value for answer in answers if answer.node.name == name), None)


def _show(name: str, found: list[Finding]) -> None:
    output.line(name)
    for finding in found:
        output.line(f"  {_MARKS[finding.verdict]}  {finding.what}")
        if finding.cure and finding.verdict != "ok":
            output.line(f"        → {finding.cure}")
