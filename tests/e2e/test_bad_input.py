"""Broken files, hostile words, unfit nodes: one message that names the place, an exit code, never a traceback."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.parts.command import ARGV
from tests.parts.sshd import Sshd, generate_key
from tests.parts.words import HOSTILE_WORDS

READERS = (["ps", "--"], ["ps", "--node"], ["tail", "--"], ["kill", "--"])


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port at which nobody listens, and nobody will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("word", ["", "../../etc", "a\nb", "$(touch gotcha)", "\x1b[31mgrüße 🚀"])
def test_hostile_names_of_runs_and_nodes(word: str, site: Site) -> None:
    for command in READERS:
        done = site(*command, word, code=None)
        assert done.code in (2, 3), (command, done)
        assert done.out == ""
        assert done.err.startswith("gpuctl: ")
    assert list(site.work.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", [r"job\.yaml.*name", r"job\.yaml.*command"]),
        ("name: x\n\tcommand: y\n", [r"job\.yaml:2: "]),
        ("- a\n- b\n", [r"job\.yaml: expected the keys"]),
        ("name: x\ncommand: 'true'\nname: y\n", [r"job\.yaml:3: name"]),
        ("name: x\ncomand: y\ngpus: -1\ntimeout: soon\n", [r":2: comand", r":3: gpus", r":4: timeout"]),
        ("name: UPPER case\ncommand: 'true'\n", [r":1: name"]),
        ("name: x\ncommand: 'true'\nwatch: {progress: '('}\n", [r":3: watch\.progress"]),
        ("name: x\ncommand: 'true'\non_oom: {reduce: size}\n", [r":3: on_oom"]),
        ("name: x\ncommand: 'true'\nwatch: {stall: {for: 1m, action: kill}}\n", [r":3: watch\.stall"]),
        ("name: x\ncommand: 'a\x00b'\n", [r"job\.yaml"]),
    ],
)
def test_broken_job_files(text: str, faults: list[str], site: Site) -> None:
    site.job(text)
    done = site("launch", "job.yaml", "--on", "sim", code=2)
    assert done.out == ""
    for fault in faults:
        assert re.search(fault, done.err), done.err


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("nodes: {}\n", [r"inventory\.yaml"]),
        (
            "nodes:\n  a: {adress: x}\n  b: {transport: locall}\n  c: [1]\n",
            [r":2: .*adress", r":3: .*transport", r":4: "],
        ),
        ("nodes:\n  a: {transport: local, gpus: two}\n", [r":2: .*gpus"]),
        ("nodes: {a: {transport: local}}\ndefalts: {}\n", [r":2: defalts"]),
        ("{", [r"inventory\.yaml:\d"]),
    ],
)
def test_broken_inventories(text: str, faults: list[str], site: Site) -> None:
    site.inventory.write_text(text)
    done = site("ps", code=2)
    for fault in faults:
        assert re.search(fault, done.err), done.err


def test_bytes_that_are_no_text(site: Site) -> None:
    (site.work / "job.yaml").write_bytes(b"name: x\ncommand: \xff\xfe\n")
    assert "job.yaml" in site("launch", "job.yaml", code=2).err
    run = site.run_of(r"printf '\377\376\000\n'")
    site.await_end(run)
    with site.following("tail", run) as copy:
        copy.ended()
    assert copy.out == b"\xff\xfe\x00\n"
    assert site("tail", run, "--json").lines()[0]["base64"]
    assert site("explain", "-", "--json", stdin=bytes(range(256)) * 100).json()["class"] is None


def test_an_unreachable_node_is_exit_4_after_the_others_rows(far: Site, refusing: int) -> None:
    entry = f"dead: {{address: 127.0.0.1, port: {refusing}, connect_timeout: 2, ssh_config: /dev/null}}"
    far.inventory.write_text(f"{far.inventory.read_text()}  {entry}\n")
    run = far.run_of("true", node="gpu1")
    far.await_end(run)
    for words in (["ps"], ["gpus", "gpu1", "dead"], ["exec", "gpu1", "dead", "--", "true"]):
        done = far(words[0], "--json", *words[1:], code=4)
        assert done.json(), words
        assert "dead" in done.err
    assert far("tail", run).out == "", "a run whose node is known needs no other"
    for words in (["kill"], ["relaunch"], ["rm"]):
        assert "not known: dead" in far(*words, code=2).err, "neither guessed nor kept silent about"
    assert f"ended ones: {run}" in far("rm", code=2).err
    mistyped = far("tail", f"{run[:-1]}-", code=4).err
    assert f"did you mean {run}?" in mistyped and "may be on one that did not: dead" in mistyped
    assert "no GPUs" not in far("gpus", "dead", code=4).err, "what can't be read is not known to be none"
    for words in (["launch", "--on", "dead", "--", "true"], ["clean", "dead"], ["cp", "dead:/x", "y"]):
        assert "dead" in far(*words, code=4).err
    assert "FAIL" in far("doctor", "dead", code=4).out


def test_a_node_without_python_says_so(far: Site) -> None:
    assert far.server is not None
    entry = far.entry(far.folder, python="/no/such/python3")
    far.inventory.write_text(f"nodes:\n  bare: {{{entry}}}\n")
    done = far("ps", code=4)
    assert "/no/such/python3" in done.err and "bare" in done.err
    assert "python" in far("launch", "--on", "bare", "--gpus", "0", "--", "true", code=4).err


def test_an_unknown_host_key_is_accepted_by_trust_alone(far: Site, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    far.inventory.write_text(f"nodes:\n  new: {{{far.entry(far.folder, known_hosts=str(known))}}}\n")
    done = far("ps", code=4)
    assert "gpuctl trust new" in done.err
    assert not known.exists(), "never by itself, never by a prompt"
    far("trust", "new", "--fingerprint", "SHA256:" + "A" * 43, "--json", code=5)
    assert not known.exists()
    trusted = far("trust", "new", "--json").json()
    assert trusted["before"] == "unknown" and trusted["keys"][0]["fingerprint"].startswith("SHA256:")
    assert far("ps", "--json").json() == []
    generate_key(tmp_path / "other")
    address = known.read_text().split()[0]
    known.write_text(f"{address} {(tmp_path / 'other.pub').read_text()}")
    changed = far("ps", code=4)
    assert "gpuctl trust new" in changed.err and "change" in changed.err.lower()
    far("trust", "new", "--json", code=5)
    assert "gpuctl trust new" in far("ps", code=4).err, "nothing was written without a word for it"
    assert far("trust", "new", "-y", "--json").json()["before"] == "changed"
    far("ps")


def test_a_key_that_may_not_log_in_is_exit_4(far: Site, tmp_path: Path, sshd: Sshd) -> None:
    generate_key(tmp_path / "stranger")
    entry = far.entry(far.folder, identity_file=str(tmp_path / "stranger"))
    far.inventory.write_text(f"nodes:\n  shut: {{{entry}}}\n")
    done = far("ps", code=4, env={"SSH_AUTH_SOCK": ""})
    assert "shut" in done.err


def test_a_state_folder_that_can_not_be_written_says_so(site: Site) -> None:
    blocked = site.folder / "file"
    blocked.write_text("")
    site.inventory.write_text(f"nodes:\n  odd: {{transport: local, state_dir: {blocked}/below}}\n")
    for words in (["ps"], ["launch", "--on", "odd", "--gpus", "0", "--", "true"]):
        done = site(*words, code=4)
        assert str(blocked) in done.err


def test_a_journal_with_half_a_line_and_a_stray_folder_hide_no_run(site: Site) -> None:
    run = site.run_of("true")
    site.await_end(run)
    with (site.run_folder(run) / "journal.jsonl").open("a") as journal:
        journal.write('{"seq": 99, "ty')
    (site.state / "runs" / "stray-abc123").mkdir()
    (site.state / "runs" / "stray-abc123" / "spec.json").write_text("{")
    assert [row["run"] for row in site("ps", "--json").json()] == [run]
    assert site("events", run, "--json").lines()[-1]["type"] == "run_finished"
    assert site("tail", "stray-abc123", code=None).code in (2, 3)


def test_hostile_values_arrive_as_they_are(site: Site) -> None:
    """All but what YAML takes for nothing, which a parameter can't be."""
    words = {f"p{at}": word for at, word in enumerate(HOSTILE_WORDS) if word not in ("~", "null", "\udc80")}
    params = "\n".join(f"  {name}: x" for name in words)
    command = " ".join(f"{{{name}}}" for name in words)
    site.job(f"name: v\nnode: sim\ngpus: 0\nparams:\n{params}\ncommand: printf '%s\\0' {command}\n")
    sets = [word for name, value in words.items() for word in ("--set", f"{name}={value}")]
    answer = site("launch", "job.yaml", "--json", *sets).json()
    site.await_end(answer["run"])
    found = site.log(answer["run"]).decode().split("\0")[:-1]
    for name, word, value in zip(words, words.values(), found, strict=True):
        given = answer["params"][name]
        assert value == word or not isinstance(given, str), (name, word, value)
    assert not (site.work / "gotcha").exists()


FULL = [
    "nodes", "gpus", "schema job", "--help", "ps --json", "ps {run}", "tail {run}", "tail {run} --json", "events {run}",
]  # fmt: skip


@pytest.mark.parametrize("words", FULL)
def test_output_that_can_not_be_written_is_said_plainly(words: str, site: Site) -> None:
    run = site.run_of("seq 1 3000") if "{run}" in words else ""
    if run:
        site.await_end(run)
    script = f'"$@" {words.format(run=run)} >/dev/full'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *ARGV], check=False, capture_output=True, text=True, env=site.environment()
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2].startswith("gpuctl: can't write the output: No space left"), done.stderr


def test_a_closed_stdout_is_no_trouble(site: Site) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" ps --json >&-', "sh", *ARGV], check=False, capture_output=True, text=True,
        env=site.environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
