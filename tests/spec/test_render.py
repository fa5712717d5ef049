"""A job on a node: the run spec, `--set`, `--gpus`, secrets and warnings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuctl.errors import UsageError
from gpuctl.spec.inventory import Node, Simulate
from gpuctl.spec.job import Job, load_job
from gpuctl.spec.render import Rendered, new_run_id, parse_gpus, parse_sets, render
from gpuctl.wire.runspec import Callback, Finding, OnOom, Outputs, Relaunches, Resume, RunSpec, Stop, Watch
from tests.spec.files import SMALLEST, job

CONTRACT = Path(__file__).with_name("contract_job.yaml")
NODE = Node(name="sim", transport="local", simulate=Simulate(gpus=8))


def rendered(of: Job, node: Node = NODE, **options: object) -> Rendered:
    return render(of, node, run="r-1", **({"environ": {}} | options))  # type: ignore[arg-type]


def test_the_contracts_job_as_a_run_spec() -> None:
    result = rendered(load_job(CONTRACT), environ={"WANDB_API_KEY": "secret"}, by="me@here")
    assert result.spec == RunSpec(
        run="r-1",
        job="eagle3-extract",
        node="sim",
        command="python 02_extract_hidden_states.py --batch-size {batch_size} --max-seq-len {max_seq_len}",
        params={"batch_size": 2000, "max_seq_len": 2048},
        setup="source .venv/bin/activate\n",
        workdir="~/eagle3",
        env={"WANDB_RUN_ID": "{run}", "WANDB_RESUME": "allow"},
        secrets=["WANDB_API_KEY"],
        gpus=8,
        launcher="tmux",
        timeout_s=43200,
        stop=Stop("TERM", 30),
        on_oom=OnOom(
            reduce=["batch_size"],
            known_good={"batch_size": 4},
            floor={"batch_size": 1},
            max_relaunches=6,
            max_lost_s=3600,
        ),
        policy={"nccl_timeout": Relaunches(2, 30), "nan_loss": "stop"},
        on_busy_wait_s=3600,
        resume=Resume("checkpoints/*.pt", "--resume {latest}"),
        outputs=Outputs(["outputs/"], "keep"),
        watch=Watch(
            logs=["train.log", "ranks/**/*.log"],
            ready="step 1/",
            ready_within_s=2700,
            progress=r"step (?P<done>\d+)/(?P<total>\d+)",
            done="training finished",
            stall=Finding(900, "alert"),
            low_power=Finding(300, "alert", 0.5),
        ),
        callback=Callback(
            ["blocked", "failed", "lost", "succeeded"], 'curl -sd "$GPUCTL_RUN $GPUCTL_STATE: $GPUCTL_WHY" ntfy.sh/me'
        ),
        by="me@here",
    )
    assert result.secrets == {"WANDB_API_KEY": "secret"}
    assert RunSpec.from_json(json.loads(json.dumps(result.spec.to_json()))) == result.spec


def test_secrets_are_in_no_text_of_it() -> None:
    result = rendered(load_job(CONTRACT), environ={"WANDB_API_KEY": "hush"})
    assert "hush" not in repr(result) + json.dumps(result.spec.to_json())


def test_missing_secrets_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not in your environment: A, C") as caught:
        rendered(job(tmp_path, SMALLEST + "secrets: [A, B, C]\n"), environ={"B": ""})
    assert caught.value.exit_code == 2


def test_the_node_says_what_the_job_does_not(tmp_path: Path) -> None:
    node = Node.model_validate(
        {"name": "n", "transport": "local", "launcher": "tmux", "callback": {"when": ["lost"], "run": "x"}}
    )
    spec = rendered(job(tmp_path, SMALLEST), node).spec
    assert (spec.launcher, spec.callback) == ("tmux", Callback(["lost"], "x"))
    own = job(tmp_path, SMALLEST + "launcher: nohup\ncallback: {when: [failed], run: y}\n")
    assert (rendered(own, node).spec.launcher, rendered(own, node).spec.callback) == (
        "nohup",
        Callback(["failed"], "y"),
    )


def test_sets_change_params(tmp_path: Path) -> None:
    of = job(tmp_path, "name: a\ncommand: x\nparams: {lr: 0.1, name: x, n: 1}\n")
    assert rendered(of, sets=["lr=3e-5", "name=on", "name=no"]).spec.params == {"lr": 3e-5, "name": "no", "n": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-5", 3e-5), ("on", "on"), ("1:30:00", "1:30:00"), ("true", True), ("0x1F", 31), ("'5'", "5"),
     ('"a\\tb"', "a\tb"),
     ("", ""), ("a=b", "a=b"), ("[1]", "[1]"), ("# x", "# x"), ("a: b", "a: b"), (" x ", " x "), ('"null"', "null")],
)  # fmt: skip
def test_a_set_value_is_a_scalar_as_in_the_file(text: str, value: object) -> None:
    found = parse_sets([f"k={text}"], ["k"])["k"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ("batchsize=4", "the job has no parameter 'batchsize'", "Did you mean batch_size?"),
        ("zzz=4", "the job has no parameter 'zzz'", "The job's parameters are: batch_size, max_seq_len"),
        ("batch_size", "expected NAME=VALUE", ""),
        ("batch_size=null", "expected text, a number, true or false, got nothing", "Quote it"),
        ("batch_size=.nan", "expected a finite number", ""),
        ("batch_size='a'b'", "not YAML", ""),
        ("batch_size=many", "on_oom.reduce: batch_size must be a number to give way, and is text 'many'", ""),
        ("batch_size=0", "params.batch_size: expected a number above 0", ""),
        ("batch_size=0.5", "on_oom.floor: 1 is above batch_size, which is 0.5", ""),
    ],
)
def test_a_wrong_set(given: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        rendered(load_job(CONTRACT), sets=[given], environ={"WANDB_API_KEY": ""})
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "gpus"), [("2", 2), ("0", 0), ("all", "all"), ("0,1", [0, 1]), ("[2]", [2]), ("[0, 3]", [0, 3]),
                       ("2,", None), ("two", None), ("-1", None), ("[]", None), ("1,1", None), ("0-3", None),
                       ("", None)],
)  # fmt: skip
def test_gpus_as_an_option(text: str, gpus: object) -> None:
    if gpus is None:
        with pytest.raises(UsageError, match="--gpus"):
            parse_gpus(text)
    else:
        assert parse_gpus(text) == gpus


def test_gpus_that_the_node_has_not(tmp_path: Path) -> None:
    of = job(tmp_path, SMALLEST)
    assert rendered(of, gpus=[7]).spec.gpus == [7]
    assert rendered(of, gpus="all").spec.gpus == "all"
    with pytest.raises(UsageError, match="9 were asked for, node sim has 8"):
        rendered(of, gpus=9)
    with pytest.raises(UsageError, match="node sim has no GPU 8 for us"):
        rendered(of, gpus=[0, 8])
    with pytest.raises(UsageError, match="node part has no GPU 2 for us"):
        rendered(of, Node.model_validate({"name": "part", "transport": "local", "gpus": [0, 1]}), gpus=[2])
    assert rendered(of, Node(name="real", address="x"), gpus=64).spec.gpus == 64


def test_a_value_far_above_what_is_known_to_fit_is_worth_a_warning() -> None:
    of = load_job(CONTRACT)
    environ = {"WANDB_API_KEY": ""}
    assert rendered(of, environ=environ).warnings == ["batch_size 2000 is 500 times the value known to fit (4)"]
    assert rendered(of, sets=["batch_size=8"], environ=environ).warnings == []


def test_braces_in_setup_are_worth_a_warning(tmp_path: Path) -> None:
    of = job(tmp_path, SMALLEST + "setup: echo {n} {run} {other} ${n}\nparams: {n: 1}\n")
    assert rendered(of).warnings == [
        "setup is plain shell: {n} in it is not replaced",
        "setup is plain shell: {run} in it is not replaced",
    ]


def test_resuming_a_job_that_cannot_is_worth_a_warning(tmp_path: Path) -> None:
    result = rendered(job(tmp_path, SMALLEST), resume=True)
    assert result.spec.resume_older and "has no resume:" in result.warnings[0]


def test_queue_and_after(tmp_path: Path) -> None:
    spec = rendered(job(tmp_path, SMALLEST), queue=True, after="other-1").spec
    assert (spec.queue, spec.after) == (True, "other-1")


def test_run_ids_differ_and_are_plain() -> None:
    ids = {new_run_id("eagle3-extract") for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"eagle3-extract-[a-z0-9]{6}", run) for run in ids)
