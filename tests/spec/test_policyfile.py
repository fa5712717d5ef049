"""The file that `replay --policy` takes: a job file, or the part of one that decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.errors import BadFile
from gpuctl.spec.policyfile import load_policy
from gpuctl.wire.runspec import OnOom, Relaunches, RunSpec


def _spec(changes: dict[str, object]) -> RunSpec:
    before = RunSpec("job-1", "job", "sim", "true", on_oom=OnOom(reduce=["bs"]), timeout_s=5.0)
    return RunSpec.from_json({**before.to_json(), **changes})


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return path


def test_only_what_it_says_changes(tmp_path: Path) -> None:
    path = _written(tmp_path, "policy: {nccl_timeout: {relaunch: 3, backoff: 1m}, nan_loss: stop}\ntimeout: 2h\n")
    spec = _spec(load_policy(path))
    assert spec.policy == {"nccl_timeout": Relaunches(3, 60.0), "nan_loss": "stop"}
    assert (spec.timeout_s, spec.on_oom) == (7200.0, OnOom(reduce=["bs"]))


def test_a_whole_job_file_says_it_all(tmp_path: Path) -> None:
    text = "name: other\ncommand: train {bs}\nparams: {bs: 64}\non_oom: {reduce: bs, factor: 0.25}\n"
    spec = _spec(load_policy(_written(tmp_path, text)))
    assert (spec.job, spec.command) == ("job", "true"), "what ran is what ran"
    assert spec.on_oom is not None
    assert (spec.on_oom.factor, spec.timeout_s) == (0.25, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("polcy: {}\n", "policy.yaml:1: polcy: unknown key; did you mean policy?"),
        ("policy:\n  nccl_timeot: stop\n", "policy.yaml:2: policy.nccl_timeot"),
        ("", "expected a job file, or some of its keys"),
        ("on_oom: {factor: 2}\n", "policy.yaml:1: on_oom.factor"),
    ],
)
def test_faults_name_the_place(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(BadFile) as raised:
        load_policy(_written(tmp_path, text))
    assert fault in str(raised.value)
