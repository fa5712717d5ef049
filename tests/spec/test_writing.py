"""`--dry-run`'s YAML: loading it gives the same job, by any YAML reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.spec import document
from gpuctl.spec.job import Job, from_document, load_job
from gpuctl.spec.writing import to_yaml
from tests.parts.words import HOSTILE_WORDS
from tests.spec.files import SMALLEST, job

EVERYTHING = (
    "name: many\ncommand: x {bs} {seq} {acc}\nparams: {bs: 64, seq: 4096, acc: 2, s: '5', t: true, f: 3e-5, on: on}\n"
    "gpus: [0, 2]\nenv: {A: 1.10, B: on}\ntimeout: 1h30m\nstop: {grace: 0.5}\n"
    "on_oom: {reduce: [bs, seq], floor: 2, multiple_of: {seq: 128}, values: {bs: [32, 8]}, known_good: {seq: 512},"
    " keep_product: [bs, acc], at_load: [seq], resume_changed: true}\n"
    "policy: {nccl_timeout: {relaunch: 2}, nan_loss: stop}\nwatch: {progress: x, stall: {for: 90s, action: kill}}\n"
)


@pytest.mark.parametrize("text", [SMALLEST, EVERYTHING])
def test_it_reads_back_as_the_same_job(tmp_path: Path, text: str) -> None:
    loaded = job(tmp_path, text)
    assert job(tmp_path, to_yaml(loaded)) == loaded


def test_the_contracts_job_reads_back() -> None:
    loaded = load_job(Path(__file__).with_name("contract_job.yaml"))
    assert from_document(document.parse(to_yaml(loaded), "dry")) == loaded


def test_it_is_short_and_reads_well(tmp_path: Path) -> None:
    text = SMALLEST + "timeout: 5400\nsetup: |\n  a\n  b\ngpus: [0]\nparams: {lr: 3e-5, s: 3e-5x}\n"
    assert to_yaml(job(tmp_path, text)) == (
        "name: small\ngpus:\n- 0\nsetup: |\n  a\n  b\ncommand: python train.py\n"
        "params:\n  lr: 3e-5\n  s: 3e-5x\ntimeout: 1h30m\n"
    )


@given(st.dictionaries(st.sampled_from(["a", "on", "no", "y", "null"]), st.text() | st.sampled_from(HOSTILE_WORDS)))
def test_any_text_reads_back_by_rules_old_and_new(params: dict[str, str]) -> None:
    text = to_yaml(Job(name="a", command="x", params=params))
    assert document.parse(text, "dry").data.get("params", {}) == params
    assert yaml.safe_load(text).get("params", {}) == params


@given(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans(), min_size=1))
def test_any_number_reads_back(values: list[float]) -> None:
    params = {f"p{index}": value for index, value in enumerate(values)}
    assert document.parse(to_yaml(Job(name="a", command="x", params=params)), "dry").data["params"] == params
