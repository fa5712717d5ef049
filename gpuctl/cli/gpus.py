"""`gpuctl gpus`: each GPU's memory, utilisation, power, temperature and users."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import click

from gpuctl.agent import Gpus
from gpuctl.cli import options, output
from gpuctl.cli.ps import told
from gpuctl.errors import GpuctlError
from gpuctl.fleet.fleet import Fleet
from gpuctl.spec.inventory import Node
from gpuctl.wire.replies import DeviceRow, Holder

_DEADLINE_S = 180.0  # the first reading may take long, and its own deadline says more than this one
_COLUMNS = ["node", "gpu", "name", "memory", "util", "power", "temp", "runs", "users"]


@click.command(
    "gpus", epilog="Example: gpuctl gpus gpu1 --follow. With --json: one document; with --follow JSON lines."
)
@options.nodes
@click.option("--follow", is_flag=True, help="Go on, a reading a second, until Ctrl-C.")
@options.as_json
@options.inventory
def command(nodes: tuple[str, ...], follow: bool, as_json: bool) -> int:
    """Show each GPU's memory, utilisation, power, temperature and users; NODE left out: all nodes."""
    return options.performed(_follow(nodes, as_json) if follow else _once(nodes, as_json))


async def _once(words: tuple[str, ...], as_json: bool) -> int:
    async with options.opened() as (fleet, _store):
        chosen = options.chosen(fleet.inventory, words)
        with output.doing("asking the nodes"):
            answers = await fleet.ask(chosen, lambda agent: agent.gpus(), deadline_s=_DEADLINE_S)
    given = [(answer.node, answer.value) for answer in answers if answer.value is not None]
    errors = [answer.error for answer in answers if answer.error is not None]
    blind = [_blind(node, gpus) for node, gpus in given if gpus.error]
    if as_json:
        output.document([row for node, gpus in given for row in _facts(node, gpus)])
    else:
        _show(given, all_known=not errors and not blind)
    if not words:
        for error in blind:  # a machine without GPUs may well stand in the inventory; asked for by name, it is an error
            output.note(error.what)
    return told(errors + blind if words else errors)


def _blind(node: Node, gpus: Gpus) -> GpuctlError:
    """A node that answers, but can't read its GPUs."""
    return GpuctlError(f"{node.name}: {gpus.error}", f"gpuctl doctor {node.name} says more")


async def _follow(words: tuple[str, ...], as_json: bool) -> int:
    async with options.opened() as (fleet, _store):
        following = [_readings(fleet, node, as_json) for node in options.chosen(fleet.inventory, words)]
        errors = await asyncio.gather(*following)
    return told([error for error in errors if error is not None])


async def _readings(fleet: Fleet, node: Node, as_json: bool) -> GpuctlError | None:
    told_of = None
    try:
        async with aclosing(fleet.agent(node).follow_gpus()) as readings:
            async for gpus in readings:
                if as_json:
                    for row in _facts(node, gpus):
                        output.json_line(row)
                else:
                    _show([(node, gpus)], all_known=not gpus.error)
                if gpus.error and gpus.error != told_of:
                    output.note(f"{node.name}: {gpus.error}")
                told_of = gpus.error
    except GpuctlError as error:
        return error
    return None


def _show(given: list[tuple[Node, Gpus]], *, all_known: bool) -> None:
    """`all_known`: every node could say what it has. Where one could not, no row does not mean that there is no GPU."""
    rows = [_cells(node, row) for node, gpus in given for row in gpus.devices]
    output.table(output.Table(_COLUMNS, rows, empty="no GPUs" if all_known else ""))


def _facts(node: Node, gpus: Gpus) -> list[dict[str, Any]]:
    return [{"node": node.name, "driver": gpus.driver, **_flat(row)} for row in gpus.devices]


def _flat(row: DeviceRow) -> dict[str, Any]:
    """The device's own facts at the top, its users beside them."""
    facts = row.to_json()
    device: dict[str, Any] = facts.pop("device")
    return device | facts


def _cells(node: Node, row: DeviceRow) -> list[str | None]:
    device = row.device
    return [
        node.name,
        str(device.index),
        device.error or device.name,
        _of(device.memory_used_mib, device.memory_total_mib, "MiB"),
        None if device.utilisation is None else f"{device.utilisation} %",
        _of(_round(device.power_w), _round(device.power_limit_w), "W"),
        None if device.temperature_c is None else f"{device.temperature_c} °C",
        ", ".join(row.leases) or None,
        ", ".join(holder_words(holder) for holder in row.holders) or None,
    ]


def _round(value: float | None) -> int | None:
    return None if value is None else round(value)


def _of(part: int | None, whole: int | None, unit: str) -> str | None:
    if part is None:
        return None
    return f"{part} {unit}" if whole is None else f"{part}/{whole} {unit}"


def holder_words(holder: Holder) -> str:
    used = f" {holder.used_mib} MiB" if holder.used_mib else ""
    return f"{holder.name} (pid {holder.pid}, {holder.user}){used}"
