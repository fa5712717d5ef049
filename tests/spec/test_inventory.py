"""inventory.yaml: its keys, defaults, faults, and which nodes a name or label means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.errors import NotFound, UsageError
from gpuctl.spec.inventory import NodeKeys, find_inventory, load_inventory
from gpuctl.wire.nodespec import NodeSpec, Simulate
from gpuctl.wire.runspec import Callback
from tests.spec.files import inventory, inventory_faults

SHIPPED = Path(__file__).parents[2] / "inventory.yaml"

EVERY_KEY = """
nodes:
  full:
    transport: fabric
    address: gpu1
    port: 2222
    user: ubuntu
    identity_file: ~/.ssh/gpu
    known_hosts: /etc/hosts.keys
    ssh_config: /dev/null
    proxy_jump: me@jump:22
    connect_timeout: 5s
    keepalive: 1m
    container: 200
    state_dir: /var/gpuctl
    lock_dir: /run/locks
    python: /opt/python3
    launcher: tmux
    gpus: [0, 1]
    devices: [/dev/fake*]
    idle_mib: 5
    protect: [exporter]
    gpu_hour_cost: 2
    labels: {kind: blackwell, generation: 1.10, spot: true}
    simulate: {gpus: 2, memory_mib: 100, power_limit_w: 300, model: X, folder: /tmp/x}
    nvml_library: /opt/libnvidia-ml.so.1
    callback: {when: [lost], run: "true"}
"""


def test_the_inventory_that_ships_names_only_this_machine() -> None:
    shipped = load_inventory(SHIPPED)
    assert list(shipped.nodes) == ["local", "sim"]
    assert {node.transport for node in shipped.nodes.values()} == {"local"}
    assert shipped.node("sim").spec().simulate == Simulate(8, 97887, 600, "RTX PRO 6000 Blackwell")
    assert shipped.node("local").connect_timeout == 10


def test_every_node_key(tmp_path: Path) -> None:
    node = inventory(tmp_path, EVERY_KEY).node("full")
    assert set(node.model_fields_set) == {*NodeKeys.model_fields, "name"}
    assert (node.connect_timeout, node.keepalive, node.container, node.gpu_hour_cost) == (5, 60, 200, 2)
    assert node.labels == {"kind": "blackwell", "generation": "1.10", "spot": "true"}
    assert node.spec() == NodeSpec(
        name="full",
        state_dir="/var/gpuctl",
        lock_dir="/run/locks",
        launcher="tmux",
        gpus=[0, 1],
        devices=["/dev/fake*"],
        idle_mib=5,
        protect=["exporter"],
        nvml_library="/opt/libnvidia-ml.so.1",
        simulate=Simulate(2, 100, 300, "X", "/tmp/x"),
        callback=Callback(["lost"], "true"),
        gpu_hour_cost=2,
    )


def test_what_is_left_out(tmp_path: Path) -> None:
    node = inventory(tmp_path, "nodes:\n  gpu1: {address: gpu1}\n").node("gpu1")
    assert (node.transport, node.known_hosts, node.ssh_config) == ("asyncssh", "~/.ssh/known_hosts", "~/.ssh/config")
    assert (node.port, node.user, node.identity_file, node.proxy_jump, node.python) == (None,) * 5
    assert node.spec() == NodeSpec(name="gpu1")


def test_gpus_all_is_the_default_said_aloud(tmp_path: Path) -> None:
    assert inventory(tmp_path, "nodes: {a: {transport: local, gpus: all}}").node("a").gpus is None


def test_a_node_overrides_the_defaults(tmp_path: Path) -> None:
    found = inventory(
        tmp_path,
        "defaults: {connect_timeout: 3, user: root, labels: {kind: old}}\n"
        "nodes:\n  a: {address: a}\n  b: {address: b, user: me, connect_timeout: 20, labels: {kind: new}}\n"
        "  c: {transport: local}\n",
    )
    assert [(node.user, node.connect_timeout, node.labels) for node in found.nodes.values()] == [
        ("root", 3, {"kind": "old"}),
        ("me", 20, {"kind": "new"}),
        ("root", 3, {"kind": "old"}),
    ]


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("adress: x", "adress: unknown key; did you mean address?"),
        ("name: x", "name: unknown key; known are: address, callback"),
        ("transport: ssh", "transport: expected one of asyncssh, fabric, local, got text 'ssh'"),
        ("port: 70000", "port: expected a number at most 65535, got 70000"),
        ("port: '22'", "port: expected a whole number, got text '22'"),
        ("user: 5", "user: expected text, got 5"),
        ("container: web", "container: expected a whole number, got text 'web'"),
        ("connect_timeout: long", "connect_timeout: expected a duration such as 30s"),
        ("connect_timeout: 0", "connect_timeout: expected a duration above zero"),
        ("launcher: screen", "launcher: expected one of nohup, tmux"),
        ("gpus: 2", "gpus: expected a list of GPU indices such as [0, 1], got 2"),
        ("idle_mib: -1", "idle_mib: expected a number at least 0, got -1"),
        ("protect: 5", "protect: expected a text or a list of texts, got 5"),
        ("labels: [a]", "labels: expected a mapping (key: value), got a list"),
        ("labels: {a: [b]}", "labels.a: expected text, got a list"),
        ("simulate: {gpu: 8}", "simulate.gpu: unknown key; did you mean gpus?"),
        ("simulate: true", "simulate: expected a mapping (key: value), got true"),
        ("callback: {run: x}", "callback.when: is missing; expected the states of a run that call it"),
    ],
)
def test_one_fault(tmp_path: Path, entry: str, fault: str) -> None:
    (found,) = inventory_faults(tmp_path, f"nodes:\n  a:\n    address: gpu1\n    {entry}\n")
    assert found.startswith(f"inventory.yaml:4: nodes.a.{fault}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "inventory.yaml: nodes: is missing; expected a mapping of node names to their keys"),
        ("a: 1\nnodes: {l: {transport: local}}", "inventory.yaml:1: a: unknown key; known are: defaults, nodes"),
        ("nodes: [a]", "inventory.yaml:1: nodes: expected a mapping (key: value)"),
        ("nodes:\n", "inventory.yaml:1: nodes: expected at least one node, such as local: {transport: local}"),
        ("nodes: {a: x}", "inventory.yaml:1: nodes.a: expected a mapping (key: value), such as {address: gpu1}"),
        (
            "nodes: {a: }",
            "inventory.yaml:1: nodes.a.address: is missing; expected the host's name (or transport: local)",
        ),
        (
            "nodes: {'a:b': {address: x}}",
            "inventory.yaml:1: nodes.a:b: expected a node name of letters, digits, ., _ and -",
        ),
        (
            "defaults: {address: x}\nnodes: {a: {address: x}}",
            "inventory.yaml:1: defaults.address: each node has its own: write it there",
        ),
        (
            "defaults: {prot: 1}\nnodes: {a: {address: x}}",
            "inventory.yaml:1: defaults.prot: unknown key; did you mean port?",
        ),
    ],
)
def test_one_fault_of_the_whole(tmp_path: Path, text: str, fault: str) -> None:
    assert inventory_faults(tmp_path, text) == [fault]


def test_all_faults_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    faults = inventory_faults(
        tmp_path,
        "defaults: {port: x}\nnodes:\n  a: {adress: a}\n  b: {address: b, user: 1}\n  b: {address: c}\n"
        "  c: {address: d}\n",
    )
    assert [fault.split(" ")[0:2] for fault in faults] == [
        ["inventory.yaml:1:", "defaults.port:"],
        ["inventory.yaml:3:", "nodes.a.adress:"],
        ["inventory.yaml:4:", "nodes.b.user:"],
        ["inventory.yaml:5:", "nodes.b:"],
    ]


LABELLED = """
nodes:
  a: {address: a, labels: {kind: blackwell}}
  b: {address: b, labels: {kind: hopper}}
  c: {address: c, labels: {kind: blackwell}}
"""


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("b", ["b"]),
        ("c,a", ["c", "a"]),
        ("kind=blackwell", ["a", "c"]),
        ("b, kind=blackwell", ["b", "a", "c"]),
        ("a,a", ["a"]),
    ],
)
def test_select(tmp_path: Path, selection: str, names: list[str]) -> None:
    assert [node.name for node in inventory(tmp_path, LABELLED).select(selection)] == names


def test_a_node_that_is_not_there_has_a_nearest_name(tmp_path: Path) -> None:
    found = load_inventory(SHIPPED)
    with pytest.raises(NotFound) as caught:
        found.node("locl")
    assert (caught.value.what, caught.value.hint) == (f"no node 'locl' in {SHIPPED}", "Did you mean local?")
    assert caught.value.exit_code == 3
    with pytest.raises(NotFound, match="no node with label kind=ampere"):
        inventory(tmp_path, LABELLED).select("kind=ampere")


NODES = "nodes: {l: {transport: local}}\n"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working folder, both empty; the working folder is `here`."""
    (tmp_path / "home" / ".config" / "gpuctl").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GPUCTL_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_places_in_order(places: Path) -> None:
    with pytest.raises(UsageError, match="no inventory"):
        find_inventory()
    at_home = places / "home" / ".config" / "gpuctl" / "inventory.yaml"
    at_home.write_text(NODES)
    assert find_inventory().path == at_home
    Path("inventory.yaml").write_text(NODES)
    assert find_inventory().path == Path("inventory.yaml")
    assert find_inventory(environ={"GPUCTL_INVENTORY": "~/mine.yaml"}).path == places / "home" / "mine.yaml"
    assert find_inventory(Path("x.yaml"), environ={"GPUCTL_INVENTORY": "mine.yaml"}).path == Path("x.yaml")


@pytest.mark.parametrize("text", ["all:\n  hosts: {a: }\n", "[web]\nhost1\n", "", "- a\n", "x: !vault y\n"])
def test_an_inventory_of_another_program_is_passed_over_and_said_so(places: Path, text: str) -> None:
    Path("inventory.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"\./inventory\.yaml has no nodes: and was passed over"):
        find_inventory()
    at_home = places / "home" / ".config" / "gpuctl" / "inventory.yaml"
    at_home.write_text(NODES)
    found = find_inventory()
    assert (found.path, found.notes) == (at_home, ["./inventory.yaml has no nodes: and was passed over"])


@pytest.mark.parametrize("text", ["nodes: [\n", "nodes:\n\ta: 1\n", "nodes:\n", "{nodes: {a: {address: x}}}"])
def test_a_broken_inventory_of_ours_is_not_passed_over(places: Path, text: str) -> None:
    Path("inventory.yaml").write_text(text)
    assert find_inventory().path == Path("inventory.yaml")


def test_an_inventory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such inventory") as caught:
        load_inventory(tmp_path / "none.yaml")
    assert caught.value.exit_code == 2


def test_reading_an_inventory_does_not_load_what_reads_jobs() -> None:
    """`ps` reads an inventory and must answer at once."""
    code = "import sys, gpuctl.spec.inventory; sys.exit('gpuctl.spec.job' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
