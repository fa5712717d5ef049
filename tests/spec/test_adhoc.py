"""`gpuctl launch … -- argv`: exact argv, and which value may give way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.errors import UsageError
from gpuctl.spec.adhoc import job_from_argv
from gpuctl.spec.job import load_job
from gpuctl.spec.writing import to_yaml
from gpuctl.wire import braces
from tests.parts.words import HOSTILE_WORDS

SHOW_ARGV = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(word) for word in sys.argv[1:]))"


def argv_seen(command: str, values: dict[str, object]) -> list[str]:
    """What a program finds as its argv when the node runs `command`."""
    script = braces.render(command, values, quote=True)  # type: ignore[arg-type]
    out = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout
    return out.decode(errors="surrogateescape").split("\0")


def test_argv_arrives_exactly_also_by_way_of_the_dry_run_file(tmp_path: Path) -> None:
    job = job_from_argv([sys.executable, "-c", SHOW_ARGV, *HOSTILE_WORDS], environ={})
    assert argv_seen(job.command, {}) == list(HOSTILE_WORDS)
    (tmp_path / "dry.yaml").write_text(to_yaml(job), encoding="utf-8")
    reloaded = load_job(tmp_path / "dry.yaml")
    assert reloaded == job
    assert argv_seen(reloaded.command, {}) == list(HOSTILE_WORDS)


@pytest.mark.parametrize(
    ("flag", "given", "command"),
    [
        ("batch-size", ["--batch-size", "64"], "train --batch-size {batch_size}"),
        ("batch-size", ["--batch-size=64"], "train --batch-size={batch_size}"),
        ("batch_size", ["--batch-size", "64"], "train --batch-size {batch_size}"),
        ("batch-size", ["--batch_size=64"], "train --batch_size={batch_size}"),
        ("--batch-size", ["--batch-size", "64"], "train --batch-size {batch_size}"),
        ("b", ["-b", "64"], "train -b {b}"),
        ("batch_size", ["batch_size=64"], "train batch_size={batch_size}"),
        ("train.batch-size", ["train.batch_size=64"], "train train.batch_size={train_batch_size}"),
        ("gpus", ["--gpus", "64"], "train --gpus {gpus_}"),
        ("n", ["--name", "n", "-n", "64", "--names=1"], "train --name n -n {n} --names=1"),
    ],
)
def test_reduce_finds_the_value_of_a_flag(flag: str, given: list[str], command: str) -> None:
    job = job_from_argv(["train", *given], reduce=[flag], environ={})
    assert job.command == command
    assert list(job.params.values()) == [64]
    assert job.on_oom is not None and job.on_oom.reduce == list(job.params)
    words = braces.render(job.command, job.params, quote=True).split()
    assert words == ["train", *given]


def test_reduce_is_repeatable_in_order() -> None:
    job = job_from_argv(["train", "--lr", "3e-5", "--bs", "8", "--len=128"], reduce=["len", "bs"], environ={})
    assert job.command == "train --lr 3e-5 --bs {bs} --len={len}"
    assert job.on_oom is not None and job.on_oom.reduce == ["len", "bs"]


@pytest.mark.parametrize(
    ("flag", "argv", "message"),
    [
        ("bs", ["train", "--batch", "64"], "its value must stand once in the command, and stands nowhere"),
        ("bs", ["train", "--bs", "64", "--bs=32"], "its value must stand once in the command, and stands 2 times"),
        ("bs", ["train", "--bs"], "stands nowhere"),
        ("bs", ["--bs=64"], "stands nowhere"),
        ("bs", ["train", "--bs", "big"], "its value must be a number to give way, and is 'big'"),
        ("bs", ["train", "--bs", "true"], "its value must be a number"),
        ("bs", ["train", "--bs", "0"], "expected a number above 0"),
    ],
)
def test_reduce_without_one_number_is_wrong_usage(flag: str, argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        job_from_argv(argv, reduce=[flag], environ={})
    assert caught.value.exit_code == 2


def test_reduce_twice_the_same_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="named twice"):
        job_from_argv(["train", "--bs", "1"], reduce=["bs", "bs"], environ={})


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "train.py"], "train"),
        (["torchrun", "--nproc_per_node=4", "04_train.py", "--x"], "04-train"),
        (["python3", "-m", "pkg.Fine_Tune", "--x"], "fine-tune"),
        (["./run.sh"], "run"),
        (["/usr/bin/nvidia-smi"], "nvidia-smi"),
        (["你好"], "job"),
    ],
)
def test_a_name_is_made_of_the_script(argv: list[str], name: str) -> None:
    assert job_from_argv(argv, environ={}).name == name


def test_the_other_options() -> None:
    job = job_from_argv(
        ["train"],
        name="mine",
        node="sim",
        gpus=[0, 1],
        workdir="~/x",
        env=["A=1=2", "B", "RUN_ID={run}"],
        secrets=["TOKEN"],
        setup=["source x", "cd y"],
        timeout="2h",
        launcher="tmux",
        environ={"B": "it's {run}"},
    )
    assert (job.name, job.node, job.gpus, job.workdir, job.timeout) == ("mine", "sim", [0, 1], "~/x", 7200)
    assert (job.setup, job.secrets, job.launcher) == ("source x\ncd y", ["TOKEN"], "tmux")
    rendered = {key: braces.render(value, {"run": "r"}, quote=False) for key, value in job.env.items()}
    assert rendered == {"A": "1=2", "B": "it's {run}", "RUN_ID": "r"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Big Name"}, "name: expected a name of a-z, 0-9 and -"),
        ({"env": ["NOPE"]}, "--env NOPE: not in your environment"),
        ({"env": ["CUDA_VISIBLE_DEVICES=1"]}, r"env\.CUDA_VISIBLE_DEVICES: the job may not set it"),
        ({"timeout": "soon"}, "timeout: expected a duration"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_from_argv(["train"], environ={}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "argv", [["nohup", "train"], ["env", "CUDA_VISIBLE_DEVICES=1", "train"], ["bash", "-c", "setsid x"], []]
)
def test_commands_that_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        job_from_argv(argv, environ={})


def test_words_that_only_look_like_an_operator_are_not_refused() -> None:
    assert job_from_argv(["train", "&"], environ={}).command == "train '&'"
