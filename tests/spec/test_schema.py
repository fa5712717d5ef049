"""The JSON Schemas take what the loaders take, and refuse what editors can know to be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuctl.spec import document
from gpuctl.spec.schema import schema
from tests.spec.test_inventory import EVERY_KEY, SHIPPED

JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))


def faults(kind: Any, text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema(kind))
    return [error.json_path for error in validator.iter_errors(document.parse(text, "f").data)]


@pytest.mark.parametrize("path", [Path(__file__).with_name("contract_job.yaml"), *JOBS], ids=lambda path: path.stem)
def test_jobs_that_load_are_valid(path: Path) -> None:
    assert faults("job", path.read_text()) == []


@pytest.mark.parametrize("text", [SHIPPED.read_text(), EVERY_KEY])
def test_inventories_that_load_are_valid(text: str) -> None:
    assert faults("inventory", text) == []


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("gpu: 1", "$"), ("gpus: [a]", "$.gpus"), ("gpus: two", "$.gpus"), ("timeout: soon", "$.timeout"),
        ("type: x", "$.type"), ("on_oom: {reduce: 5}", "$.on_oom"), ("policy: {x: stop}", "$.policy"),
        ("stop: {signal: X}", "$.stop.signal"), ("env: {A: [1]}", "$.env.A"),
    ],
)  # fmt: skip
def test_what_an_editor_can_know(line: str, where: str) -> None:
    assert faults("job", f"name: a\ncommand: x\n{line}\n") == [where]


def test_defaults_have_every_node_key_but_the_address() -> None:
    assert faults("inventory", "defaults: {user: me}\nnodes: {a: {address: x}}") == []
    assert faults("inventory", "defaults: {address: me}\nnodes: {a: {address: x}}") == ["$.defaults"]
    assert faults("inventory", "nodes: {'a:b': {address: x}}") == ["$.nodes"]


@pytest.mark.parametrize("kind", ["job", "inventory"])
def test_every_key_is_described(kind: Any) -> None:
    undescribed = [path for path, field in _properties(schema(kind), "$") if "description" not in field]
    assert undescribed == []


def _properties(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        for name, field in node.get("properties", {}).items():
            yield f"{path}.{name}", field
        for key, value in node.items():
            yield from _properties(value, f"{path}/{key}")
