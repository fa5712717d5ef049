"""`gpuctl nodes`: the inventory's nodes and their file; a host's containers."""

from __future__ import annotations

import re
from typing import Any

import click

from gpuctl.cli import completion, options, output
from gpuctl.errors import NodeUnfit
from gpuctl.spec.inventory import Inventory, Node
from gpuctl.transport import open_transport, run

_DISCOVER_S = 60.0


@click.command("nodes", epilog="Example: gpuctl nodes --json. Checking them end to end: gpuctl doctor.")
@click.option("--discover", metavar="HOST", shell_complete=completion.nodes, help="List this host's containers.")
@options.as_json
@options.inventory
def command(discover: str | None, as_json: bool) -> int:
    """Show the inventory's nodes and which file they stand in. Contacts none, but for --discover."""
    inventory = options.read_inventory()
    if discover is not None:
        return options.performed(_discover(inventory, discover, as_json))
    nodes = list(inventory.nodes.values())
    if as_json:
        output.document({"inventory": str(inventory.path.absolute()), "nodes": [_facts(node) for node in nodes]})
        return 0
    output.note(f"from {inventory.path}")
    output.table(output.Table(["node", "transport", "address", "gpus", "labels"], [_cells(node) for node in nodes]))
    return 0


def _facts(node: Node) -> dict[str, Any]:
    """Every key as merged with the defaults."""
    return {"node": node.name, **node.model_dump(mode="json")}


def _cells(node: Node) -> list[str | None]:
    container = f", container {node.container}" if node.container is not None else ""
    user = f"{node.user}@" if node.user else ""
    port = f":{node.port}" if node.port else ""
    address = f"{user}{node.address}{port}{container}" if node.address else container.removeprefix(", ") or None
    simulated = f"{node.simulate.gpus} simulated" if node.simulate else None
    own = ",".join(map(str, node.gpus)) if node.gpus is not None else simulated
    labels = " ".join(f"{key}={value}" for key, value in node.labels.items())
    return [node.name, node.transport, address, own, labels or None]


async def _discover(inventory: Inventory, host: str, as_json: bool) -> int:
    """The containers of a Proxmox host, by `pct list` there."""
    node = inventory.nodes.get(host) or Node(name=host, address=host)
    transport = open_transport(node.model_copy(update={"container": None}))
    try:
        with output.doing(f"asking {host}"):
            done = await run(transport, ["pct", "list"], deadline_s=_DISCOVER_S)
    finally:
        await transport.aclose()
    if done.exit_code:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
        raise NodeUnfit(f"{host}: pct list failed: {said}", "is it a Proxmox VE host, and is the user root there?")
    found = containers(done.stdout.decode(errors="replace"))
    if as_json:
        output.document(found)
    else:
        rows = [[str(one["container"]), one["state"], one["name"]] for one in found]
        output.table(output.Table(["container", "state", "name"], rows, empty=f"no containers on {host}"))
    return 0


def containers(listing: str) -> list[dict[str, Any]]:
    """`pct list`'s columns: VMID, Status, Lock (often absent), Name."""
    found = []
    for line in listing.splitlines():
        match = re.match(r"\s*(\d+)\s+(\S+)\s+(?:(\S+)\s+)?(\S+)\s*$", line)
        if match:
            found.append({"container": int(match[1]), "state": match[2], "lock": match[3], "name": match[4]})
    return found
