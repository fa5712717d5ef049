"""inventory.yaml: which nodes there are and how each is reached."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gpuctl.errors import BadFile, Fault, NotFound, UsageError
from gpuctl.spec import document, faults
from gpuctl.spec.document import Document
from gpuctl.spec.fields import Callback, Launcher, OwnGpus, Section, SomeTime, Text, Texts, Written
from gpuctl.spec.nearest import suggestion
from gpuctl.wire import nodespec, runspec

NODE_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
"""No `:` (`cp NODE:path`), no `,` and `=` (`--on A,B`, `--on label=value`)."""


class Simulate(Section):
    """GPUs that exist only as files: for trials, tests and `gpuctl demo`."""

    gpus: Annotated[int, Field(ge=1, le=64)] = 8
    """how many"""
    memory_mib: Annotated[int, Field(ge=1)] = 97887
    """the memory of each, in MiB"""
    power_limit_w: Annotated[int, Field(ge=1)] = 600
    """the power limit of each, in watts"""
    model: Text = "Simulated GPU"
    """the name that they give themselves"""
    folder: Text | None = None
    """where their state is kept, on the node; below state_dir if left out"""


class NodeKeys(Section):
    """What an entry of the inventory may say."""

    transport: Literal["asyncssh", "fabric", "local"] = "asyncssh"
    """how the node is reached; local is this machine"""
    address: Text | None = None
    """the host's name or address, or its alias in ~/.ssh/config"""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """the SSH port; what ~/.ssh/config says, else 22"""
    user: Text | None = None
    """the SSH user; what ~/.ssh/config says, else yours"""
    identity_file: Text | None = None
    """the private key; what ~/.ssh/config says, else the agent's and the usual ones"""
    known_hosts: Text = "~/.ssh/known_hosts"
    """the file of host keys, which are always checked"""
    ssh_config: Text = "~/.ssh/config"
    """the SSH client configuration to read"""
    proxy_jump: Text | None = None
    """the host to go through, as [user@]host[:port]"""
    connect_timeout: SomeTime = 10.0
    """how long reaching it may take"""
    keepalive: SomeTime = 10.0
    """how often a quiet connection is checked"""
    container: Annotated[int, Field(ge=1)] | None = None
    """the VMID of the Proxmox container in which everything happens"""
    state_dir: Text = "~/.gpuctl"
    """where runs and bundles are kept on the node"""
    lock_dir: Text = "/run/lock/gpuctl"
    """where the machine-wide leases of GPUs are kept"""
    python: Text | None = None
    """the Python to use there, 3.8 or later; python3 if left out"""
    launcher: Launcher = "nohup"
    """how runs are detached, unless the job says"""
    gpus: OwnGpus = None
    """which cards are ours to use; all if left out"""
    devices: Texts = Field(default_factory=lambda: ["/dev/nvidia*"])
    """the device files to look for users of"""
    idle_mib: Annotated[int, Field(ge=0)] = 0
    """memory that counts as empty, in MiB"""
    protect: Texts = Field(default_factory=list)
    """process names never to end, beside the built-in ones; it spares only what is not proven ours"""
    gpu_hour_cost: Annotated[float, Field(ge=0)] | None = None
    """what an hour of one GPU costs"""
    labels: dict[str, Written] = Field(default_factory=dict)
    """what to choose nodes by: --on label=value"""
    simulate: Simulate | None = None
    """simulated GPUs instead of real ones"""
    nvml_library: Text | None = None
    """the path of libnvidia-ml.so.1 on the node, where the loader does not find it"""
    callback: Callback | None = None
    """for every run on this node whose job has none"""


class Node(NodeKeys):
    """One node, its file's defaults merged in."""

    name: str

    def spec(self) -> nodespec.NodeSpec:
        """The part of it that matters on the node."""
        return nodespec.NodeSpec(
            name=self.name,
            state_dir=self.state_dir,
            lock_dir=self.lock_dir,
            launcher=self.launcher,
            gpus=self.gpus,
            devices=list(self.devices),
            idle_mib=self.idle_mib,
            protect=list(self.protect),
            nvml_library=self.nvml_library,
            simulate=nodespec.Simulate(**self.simulate.model_dump()) if self.simulate else None,
            callback=runspec.Callback(list(self.callback.when), self.callback.run) if self.callback else None,
            gpu_hour_cost=self.gpu_hour_cost,
        )


@dataclass(frozen=True)
class Inventory:
    path: Path
    nodes: dict[str, Node]

    def node(self, name: str) -> Node:
        """Raises `NotFound` with the nearest name."""
        if name in self.nodes:
            return self.nodes[name]
        hint = suggestion(name, self.nodes, kind="the inventory has")
        raise NotFound(f"no node {name!r} in {self.path}", hint[0].upper() + hint[1:])

    def select(self, selection: str) -> list[Node]:
        """The nodes of `a,b` or `label=value` (or both, by commas), in that order, each once. Raises `NotFound`."""
        chosen: dict[str, Node] = {}
        for part in (each.strip() for each in selection.split(",")):
            label, equals, value = part.partition("=")
            found = self._labelled(label, value) if equals else [self.node(part)]
            chosen.update((node.name, node) for node in found)
        return list(chosen.values())

    def _labelled(self, label: str, value: str) -> list[Node]:
        found = [node for node in self.nodes.values() if node.labels.get(label) == value]
        if not found:
            labels = sorted({f"{key}={each}" for node in self.nodes.values() for key, each in node.labels.items()})
            hint = f"Labels there: {', '.join(labels)}" if labels else "No node there has labels"
            raise NotFound(f"no node with label {label}={value} in {self.path}", hint)
        return found


@dataclass(frozen=True)
class Found:
    """The inventory file to use, and a sentence for each that was passed over on the way to it."""

    path: Path
    notes: list[str]


def find_inventory(option: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> Found:
    """Where the inventory is: the option, $GPUCTL_INVENTORY, ./inventory.yaml, ~/.config/gpuctl/inventory.yaml.

    A ./inventory.yaml without `nodes:` is some other program's: passed over, and said so.
    """
    if option is not None:
        return Found(option, [])
    if environ.get("GPUCTL_INVENTORY"):
        return Found(Path(environ["GPUCTL_INVENTORY"]).expanduser(), [])
    here, notes = Path("inventory.yaml"), []
    if here.exists():
        if _has_nodes(here):
            return Found(here, [])
        notes.append("./inventory.yaml has no nodes: and was passed over")
    at_home = Path("~/.config/gpuctl/inventory.yaml").expanduser()
    if at_home.exists():
        return Found(at_home, notes)
    what = "; ".join(["no inventory: neither ./inventory.yaml nor ~/.config/gpuctl/inventory.yaml is one", *notes])
    raise UsageError(
        what, "Write one (nodes: {local: {transport: local}} is the smallest), or name it by --inventory FILE"
    )


def load_inventory(path: Path) -> Inventory:
    """Raises `BadFile` with every fault of the file, `UsageError` where it can't be read."""
    found = document.read(path, kind="inventory")
    wrong = list(found.faults)
    nodes: dict[str, Node] = {}
    defaults, entries = _sections(found, wrong)
    _check_defaults(found, defaults, wrong)
    for name, entry in entries.items():
        node = _node(found, name, entry, defaults, wrong)
        if node is not None:
            nodes[name] = node
    if wrong:
        raise BadFile(sorted(wrong, key=lambda fault: fault.line or 0))
    return Inventory(path, nodes)


def _sections(found: Document, wrong: list[Fault]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`defaults` and `nodes`; what is wrong with them is added to `wrong`."""
    top = found.data if isinstance(found.data, dict) else {}
    if "nodes" not in top:
        wrong.append(Fault(found.file, None, "nodes", "is missing; expected a mapping of node names to their keys"))
    for key in top:
        if key not in ("defaults", "nodes"):
            wrong.append(
                found.fault((key,), f"unknown key; {suggestion(key, ('defaults', 'nodes'), kind='known are')}")
            )
    sections = []
    for key in ("defaults", "nodes"):
        section = top.get(key)
        if section is not None and not isinstance(section, dict):
            wrong.append(found.fault((key,), "expected a mapping (key: value)"))
        sections.append(section if isinstance(section, dict) else {})
    if "nodes" in top and top["nodes"] in (None, {}):
        wrong.append(found.fault(("nodes",), "expected at least one node, such as local: {transport: local}"))
    return sections[0], sections[1]


def _check_defaults(found: Document, defaults: dict[str, Any], wrong: list[Fault]) -> None:
    """Each default once, in its own line; the nodes that inherit a wrong one do not repeat it."""
    if "address" in defaults:
        wrong.append(found.fault(("defaults", "address"), "each node has its own: write it there"))
    try:
        NodeKeys(**_labels_as_written(found, ("defaults",), _without(defaults, "address")))
    except ValidationError as error:
        wrong.extend(faults.from_validation(error, found, NodeKeys, ("defaults",)))


def _node(found: Document, name: str, entry: Any, defaults: dict[str, Any], wrong: list[Fault]) -> Node | None:
    place = ("nodes", name)
    if NODE_NAME.fullmatch(name) is None:
        wrong.append(found.fault(place, "expected a node name of letters, digits, ., _ and -"))
    if entry is not None and not isinstance(entry, dict):
        wrong.append(found.fault(place, "expected a mapping (key: value), such as {address: gpu1}"))
        return None
    own = _labels_as_written(found, place, entry or {})
    inherited = _labels_as_written(found, ("defaults",), _without(defaults, "address", *own))
    try:
        keys = NodeKeys(**inherited, **own)
    except ValidationError as error:
        mine = [fault for fault in error.errors() if fault["loc"][0] in own]
        wrong.extend(found.fault((*place, *faults.place(each)), faults.message(each, NodeKeys)) for each in mine)
        return None
    if keys.transport != "local" and keys.address is None:
        wrong.append(found.fault((*place, "address"), "is missing; expected the host's name (or transport: local)"))
    return Node(name=name, **inherited, **own)


def _without(section: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}


def _labels_as_written(found: Document, place: document.Place, section: dict[str, Any]) -> dict[str, Any]:
    """Labels are text: 1.10 and true stay as they stand in the file."""
    labels = section.get("labels")
    if not isinstance(labels, dict):
        return section
    return section | {"labels": found.texts((*place, "labels"), labels)}


def _has_nodes(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        data = document.parse(text, str(path)).data
    except OSError:
        return True  # loading it says what is wrong
    except BadFile:
        return re.search(r"^nodes\s*:", text, re.MULTILINE) is not None
    return isinstance(data, dict) and "nodes" in data
