"""Whatever a file holds, it loads or it is a `BadFile` whose faults name lines: never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuctl.errors import BadFile
from gpuctl.spec import document
from gpuctl.spec.inventory import NodeKeys, load_inventory
from gpuctl.spec.job import Job, from_document

WORDS = st.sampled_from(
    ["x", "a", "reduce", "{a}", "all", "stop", "TERM", "1h", "(", "kill", "python x &", "floor", "for", "action",
     "progress", "gpus", "paths", "when", "run", "append", "nan_loss", "logs", "", "port", "folder"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | WORDS | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)
SECTIONS = st.sampled_from(sorted(Job.model_fields))


def written(data: Any) -> str:
    """JSON is YAML, but for the names of what is not finite."""
    return json.dumps(data).replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")


@given(st.dictionaries(SECTIONS | WORDS, VALUES, max_size=6))
def test_any_job_file(data: dict[str, Any]) -> None:
    text = written({"name": "a", "command": "x {a}", "params": {"a": 1}} | data)
    try:
        from_document(document.parse(text, "job.yaml"))
    except BadFile as error:
        assert all(fault.line == 1 and fault.key and fault.message for fault in error.faults)


@given(st.dictionaries(st.sampled_from(sorted(NodeKeys.model_fields)) | WORDS, VALUES, max_size=4), VALUES)
def test_any_inventory(tmp_path_factory: Any, node: dict[str, Any], defaults: Any) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(written({"defaults": defaults, "nodes": {"a": node}}), encoding="utf-8")
    try:
        load_inventory(path)
    except BadFile as error:
        assert all(fault.key and fault.message for fault in error.faults)


@given(st.text(max_size=60) | st.text(alphabet="a: -[]{}\"'\n&*!|>#%@`?,\t", max_size=40))
def test_any_text(text: str) -> None:
    try:
        from_document(document.parse(text, "job.yaml"))
    except BadFile as error:
        assert error.faults
