"""The program's own manners: help, versions, other tools' words, errors, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module

import click
import pytest

from gpuctl import __version__
from gpuctl.cli.program import COMMANDS, OUR_WORDS
from tests.cli.conftest import Inside
from tests.parts.command import Gpuctl


def test_version(gpuctl: Gpuctl) -> None:
    assert gpuctl("--version").out == f"gpuctl {__version__}\n"


def test_help_and_version_import_no_command() -> None:
    script = (
        "import sys; from gpuctl.cli.program import run; run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for module in ("asyncio", "pydantic", "yaml", "rich", "asyncssh", "sqlite3", "gpuctl.cli.launch"):
        assert f"'{module}'" not in done.stderr


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_has_help_with_an_example(name: str, inside: Inside) -> None:
    command: click.Command = import_module(f"gpuctl.cli.{name}").command
    assert command.help
    assert command.epilog and "Example" in command.epilog
    shown = inside(name, "--help").out
    assert f"gpuctl {name}" in shown


@pytest.mark.parametrize(("word", "ours"), list(OUR_WORDS.items()))
def test_other_tools_words_are_answered_with_ours(word: str, ours: str, inside: Inside) -> None:
    assert f"gpuctl {ours}" in inside(word, "x", code=2).err


def test_a_misspelt_command_names_the_nearest(inside: Inside) -> None:
    assert "did you mean `gpuctl launch`?" in inside("lanch", code=2).err


@pytest.mark.parametrize(
    "words",
    [
        ["ps", "--nonsense"],
        ["launch"],
        ["launch", "--on", "sim"],
        ["launch", "no-such-file.yaml"],
        ["launch", "--on", "sim", "--gpus", "many", "--", "true"],
        ["launch", "--on", "sim", "--reduce", "b", "--", "train", "--a", "1"],
        ["wait", "--timeout", "soon"],
        ["kill"],
        ["exec", "sim"],
        ["tail"],
        ["schema", "nonsense"],
        ["explain", "/"],
    ],
)
def test_wrong_usage_is_exit_2_and_one_message(words: list[str], inside: Inside) -> None:
    done = inside(*words, code=2)
    assert done.out == ""
    assert done.err.startswith("gpuctl: ")
    assert len(done.err.splitlines()) <= 3


@pytest.mark.parametrize(
    "words",
    [
        ["ps", "nope"],
        ["tail", "nope"],
        ["events", "nope"],
        ["wait", "nope"],
        ["kill", "nope"],
        ["relaunch", "nope"],
        ["rm", "nope"],
        ["explain", "nope"],
    ],
)
def test_no_such_run_is_exit_3(words: list[str], inside: Inside) -> None:
    assert "no run 'nope'" in inside(*words, code=3).err


@pytest.mark.parametrize(
    "words",
    [
        ["gpus", "smi"],
        ["clean", "smi"],
        ["doctor", "smi"],
        ["exec", "smi", "--", "true"],
        ["launch", "--on", "smi", "--", "true"],
        ["ps", "--node", "smi"],
        ["trust", "smi"],
    ],
)
def test_no_such_node_is_exit_3_and_names_the_nearest(words: list[str], inside: Inside) -> None:
    error = inside(*words, code=3).err
    assert "smi" in error
    assert "sim" in error


def test_every_fault_of_a_bad_inventory_at_once(gpuctl: Gpuctl) -> None:
    gpuctl.inventory.write_text("nodes:\n  a: {adress: x}\n  b: {transport: locall}\n")
    error = gpuctl("ps", code=2).err
    assert re.search(r"inventory\.yaml:2: .*adress", error)
    assert re.search(r"inventory\.yaml:3: .*transport", error)


def test_every_fault_of_a_bad_job_at_once(gpuctl: Gpuctl) -> None:
    gpuctl.job("name: x\nnode: sim\ncomand: true\ngpus: many\n")
    error = gpuctl("launch", "job.yaml", code=2).err
    assert re.search(r"job\.yaml:3: comand", error)
    assert re.search(r"job\.yaml:4: gpus", error)


def test_inventory_may_be_named_before_and_after_the_command(gpuctl: Gpuctl) -> None:
    other = gpuctl.folder / "other.yaml"
    other.write_text("nodes: {elsewhere: {transport: local}}\n")
    for words in (["--inventory", str(other), "nodes"], ["nodes", "--inventory", str(other)]):
        assert [node["node"] for node in gpuctl(*words, "--json").json()["nodes"]] == ["elsewhere"]


def test_an_inventory_without_nodes_is_passed_over_and_said_so(gpuctl: Gpuctl) -> None:
    (gpuctl.work / "inventory.yaml").write_text("hosts: [a, b]\n")
    done = gpuctl("nodes", code=2, env={"GPUCTL_INVENTORY": "", "HOME": str(gpuctl.folder)})
    assert "passed over" in done.err


def test_schemas_are_json(inside: Inside) -> None:
    assert "command" in inside("schema", "job").json()["properties"]
    assert "nodes" in json.dumps(inside("schema", "inventory").json()["properties"])


def test_a_closed_pipe_is_no_error(gpuctl: Gpuctl) -> None:
    script = f"{sys.executable} -m gpuctl schema job | head -c 1"
    done = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True, env=gpuctl.environment())
    assert done.stdout == "{"
    assert done.stderr == ""


def test_completion_of_nodes(gpuctl: Gpuctl) -> None:
    env = {"_GPUCTL_COMPLETE": "bash_complete", "COMP_WORDS": "gpuctl gpus s", "COMP_CWORD": "2"}
    assert gpuctl(env=env).out.strip() == "plain,sim"
