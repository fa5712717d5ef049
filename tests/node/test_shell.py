"""The attempt's script: when the shell gives way to the command, and what the job then finds."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gpuctl.node import program, shell
from gpuctl.wire.runspec import RunSpec, Scalar

SIMPLE = [
    "python train.py --lr 3e-5",
    "python train.py > train.log 2>&1",
    "FOO=1 BAR='a b' python train.py",
    'python -c "print(1); print(2)"',
    "torchrun --nproc_per_node=4 \\\n  train.py --x 'a|b'",
    "./run.sh &> out.log",
    "python train.py 'it is; not & a | list'",
]
NOT_SIMPLE = [
    "python a.py; python b.py",
    "python a.py && python b.py",
    "python a.py | tee log",
    "(cd x; python a.py)",
    "python a.py\npython b.py",
    "for i in 1 2; do python a.py; done",
    "python a.py & wait",
]


@pytest.mark.parametrize("command", SIMPLE)
def test_one_command_is_simple(command: str) -> None:
    assert shell.is_simple(command)


@pytest.mark.parametrize("command", NOT_SIMPLE)
def test_more_than_one_is_not(command: str) -> None:
    assert not shell.is_simple(command)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("python train.py", "python"),
        ("A=1 B='x y' ./run.sh", "./run.sh"),
        ('"$PYTHON" train.py', None),
        ("$(which python) x", None),
        ("'unclosed", None),
        ("", None),
    ],
)
def test_the_first_word(command: str, word: str | None) -> None:
    assert shell.first_word(command) == word


def spec(tmp_path: Path, command: str, **more: object) -> RunSpec:
    return RunSpec(run="job-1", job="job", node="local", command=command, workdir=str(tmp_path), gpus=0, **more)  # type: ignore[arg-type]


def run(job: RunSpec, tmp_path: Path, params: dict[str, Scalar] | None = None) -> subprocess.CompletedProcess[str]:
    known = shell.values(job, params or {}, 1, 2, 4711)
    exported = shell.environment(job, known, attempt_dir=str(tmp_path), indices=[2, 3], added={})
    path = tmp_path / "job.sh"
    path.write_text(shell.script(job, known, exported, resume=None))
    return subprocess.run(
        [*shell.login_shell(), str(path)],
        env={**program.login_environment(), **exported},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_a_simple_command_takes_the_shells_place(tmp_path: Path) -> None:
    job = spec(tmp_path, "cat /proc/self/status")
    done = subprocess.Popen(
        [*shell.login_shell(), "-c", shell.script(job, shell.values(job, {}, 1, 0, 0), {}, resume=None)],
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = done.communicate(timeout=20)
    assert f"Pid:\t{done.pid}\n" in out


def test_assignments_before_the_command_reach_it(tmp_path: Path) -> None:
    done = run(spec(tmp_path, "A='x y' B=\"2\" env"), tmp_path)
    assert "A=x y\n" in done.stdout
    assert "B=2\n" in done.stdout


def test_a_builtin_or_a_function_is_not_execed(tmp_path: Path) -> None:
    assert run(spec(tmp_path, "echo hello"), tmp_path).stdout == "hello\n"
    assert run(spec(tmp_path, "greet you", setup='greet() { echo "hi $1"; }'), tmp_path).stdout == "hi you\n"


@pytest.mark.parametrize("code", [0, 1, 7, 137])
def test_the_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    assert run(spec(tmp_path, f"sh -c 'exit {code}'"), tmp_path).returncode == code


def test_death_by_a_signal_is_seen_as_such(tmp_path: Path) -> None:
    assert run(spec(tmp_path, "sh -c 'kill -9 $$'"), tmp_path).returncode == -9


def test_setup_and_command_share_a_shell_and_a_failing_setup_ends_it(tmp_path: Path) -> None:
    assert run(spec(tmp_path, 'sh -c "echo $WORD"', setup="WORD=shared"), tmp_path).stdout == "shared\n"
    failed = run(spec(tmp_path, "echo not reached", setup="false"), tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")


def test_a_failing_stage_of_a_pipe_fails_it(tmp_path: Path) -> None:
    assert run(spec(tmp_path, "sh -c 'exit 5' | cat"), tmp_path).returncode == 5


def test_values_are_quoted_and_arrive_as_they_are(tmp_path: Path) -> None:
    hostile = "a b'c\"d $HOME `id` \n é -x"
    done = run(spec(tmp_path, "printf %s {value}"), tmp_path, {"value": hostile})
    assert done.stdout == hostile


def test_it_runs_in_workdir_with_what_the_contract_names(tmp_path: Path) -> None:
    done = run(spec(tmp_path, "env", env={"WANDB_RUN_ID": "{run}"}), tmp_path)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found["PWD"] == str(tmp_path)
    assert found["GPUCTL_RUN"] == "job-1"
    assert found["GPUCTL_ATTEMPT"] == "1"
    assert found["GPUCTL_DIR"] == str(tmp_path)
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["PYTHONUNBUFFERED"] == found["PYTHONFAULTHANDLER"] == found["SPT_NOENV"] == "1"
    assert found["WANDB_RUN_ID"] == "job-1"


def test_the_job_file_wins_over_our_defaults(tmp_path: Path) -> None:
    done = run(spec(tmp_path, "env", env={"PYTHONUNBUFFERED": "0"}), tmp_path)
    assert "PYTHONUNBUFFERED=0\n" in done.stdout


def test_a_profile_can_not_take_the_gpus_away(tmp_path: Path) -> None:
    job = spec(tmp_path, "env")
    known = shell.values(job, {}, 1, 1, 0)
    exported = shell.environment(job, known, attempt_dir=str(tmp_path), indices=[5], added={})
    script = tmp_path / "job.sh"
    script.write_text(shell.script(job, known, exported, resume=None))
    (tmp_path / ".bash_profile").write_text("export CUDA_VISIBLE_DEVICES=0\n")
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-l", str(script)], env=environment, capture_output=True, text=True, check=True)
    assert "CUDA_VISIBLE_DEVICES=5\n" in done.stdout


def test_a_word_that_the_node_does_not_know_is_named(tmp_path: Path) -> None:
    known = shell.values(spec(tmp_path, ""), {}, 1, 0, 0)
    assert shell.missing_word(spec(tmp_path, "no-such-program --x"), known) == "no-such-program"
    assert shell.missing_word(spec(tmp_path, "sh -c true"), known) is None
    assert shell.missing_word(spec(tmp_path, "no-such-program", setup="source venv"), known) is None


def test_the_checkout_is_described(tmp_path: Path) -> None:
    assert shell.code_of(str(tmp_path)) is None
    for words in ("init -q", "config user.email a@example.com", "config user.name A"):
        subprocess.run(["git", *shlex.split(words)], cwd=tmp_path, check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run(["git", "add", "a"], cwd=tmp_path, check=True)
    subprocess.run(["git", "commit", "-qm", "a"], cwd=tmp_path, check=True)
    clean = shell.code_of(str(tmp_path))
    assert clean is not None
    assert clean["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert shell.code_of(str(tmp_path)) == {**clean, "dirty": True}


def test_what_runs_for_gpuctl_itself_bears_no_mark_whatever_the_administrator_has_set_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marked supervisor would be ended as a process of that run."""
    everyones = tmp_path / "environment"
    everyones.write_text("GPUCTL_RUN=theirs-1\nexport GPUCTL_DIR=/x\nLANG=C.UTF-8\n")
    monkeypatch.setattr(program, "EVERYONES", (str(everyones),))
    assert program.own_environment()["LANG"] == "C.UTF-8"
    assert not [name for name in program.own_environment() if name.startswith("GPUCTL_")]


@pytest.mark.parametrize("resume", [None, "--resume 'a b.pt'"])
def test_where_the_checkpoint_is_told(tmp_path: Path, resume: str | None) -> None:
    shown = ["<--resume>", "<a b.pt>"] if resume else []
    for command, expected in (
        ("printf '<%s>\\n' {x} {resume} | tee copy", ["<a|b>", *shown]),
        ("printf '<%s>\\n' {x}\n", ["<a|b>", *shown]),
        ("printf '<%s>\\n' {{resume}}", ["<{resume}>", *shown]),
    ):
        job = spec(tmp_path, command)
        text = shell.script(job, shell.values(job, {"x": "a|b"}, 1, 0, 0), {}, resume=resume)
        done = subprocess.run([*shell.login_shell(), "-c", text], capture_output=True, text=True, check=False)
        assert (done.stdout.splitlines(), done.stderr) == (expected, "")
    assert shell.missing_word(spec(tmp_path, "{resume} true"), {}) is None
