"""Commands that ask nodes: gpus, exec, doctor, nodes, clean; one dead node hides no other."""

from __future__ import annotations

import socket

import pytest

from gpuctl.cli.nodes import containers
from tests.parts.command import Gpuctl
from tests.parts.gpus import holding


@pytest.fixture
def dead_too(gpuctl: Gpuctl) -> Gpuctl:
    """A node more, on a port where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    text = gpuctl.inventory.read_text()
    gpuctl.inventory.write_text(
        f"{text}  dead: {{address: 127.0.0.1, port: {port}, connect_timeout: 2, ssh_config: /dev/null}}\n"
    )
    return gpuctl


def test_gpus_by_name(gpuctl: Gpuctl) -> None:
    rows = gpuctl("gpus", "sim", "--json").json()
    assert [(row["node"], row["index"], row["memory_used_mib"], row["memory_total_mib"]) for row in rows] == [
        ("sim", index, 0, 97887) for index in range(4)
    ]
    assert "0/97887 MiB" in gpuctl("gpus", "sim").out


def test_gpus_by_label(gpuctl: Gpuctl) -> None:
    assert len(gpuctl("gpus", "kind=simulated", "--json").json()) == 4


def test_a_dead_node_hides_no_other(dead_too: Gpuctl) -> None:
    done = dead_too("gpus", "dead", "sim", "--json", code=4)
    assert len(done.json()) == 4
    assert "dead" in done.err
    done = dead_too("ps", "--json", code=4)
    assert done.json() == []
    assert "dead" in done.err


def test_no_such_run_can_not_be_known_while_a_node_is_dead(dead_too: Gpuctl) -> None:
    assert "on the nodes that answered" in dead_too("tail", "nope", code=4).err


def test_nothing_is_ended_by_a_guess_while_a_node_is_dead(dead_too: Gpuctl) -> None:
    run = dead_too.launch("sleep 60")
    for words in (["kill", "job"], ["relaunch", run[:-1]], ["rm", "job"]):
        error = dead_too(*words, code=4).err
        assert "dead" in error
        assert run in error
    assert dead_too("kill", run, "--json").json()[0]["state"] == "killed"


def test_exec_hands_over_argv_as_it_stands(gpuctl: Gpuctl) -> None:
    words = ["a b", "", "$HOME", "it's", '"', "-n", "ü\n*"]
    done = gpuctl("exec", "sim", "--", "printf", "%s|", *words)
    assert done.out == "".join(f"{word}|" for word in words)


@pytest.mark.parametrize("way", [[], ["--json"], ["local"]], ids=["plain", "json", "on many"])
def test_what_a_node_says_moves_no_terminal(gpuctl: Gpuctl, way: list[str]) -> None:
    """Escape sequences by the C0 and the C1 controls, on both streams."""
    hostile = "printf 'a\\033]0;title\\007\\302\\2332Jb\\033[31mc\\177\\n'"
    screen = gpuctl.on_terminal("exec", "sim", *way, "--", "sh", "-c", f"{hostile}; {hostile} >&2")
    assert screen.end() == 0
    assert b"a" in screen.shown
    shown = screen.shown.decode()
    assert not [char for char in shown if char not in "\r\n" and (char < " " or "\x7f" <= char <= "\x9f")], shown


def test_json_is_the_same_whatever_is_in_it(gpuctl: Gpuctl) -> None:
    (done,) = gpuctl("exec", "sim", "--json", "--", "printf", "ü\u009b2J\u007f\x1b").json()
    assert done["stdout"] == "ü\u009b2J\u007f\x1b"


def test_exec_on_many(gpuctl: Gpuctl) -> None:
    done = gpuctl("exec", "local", "sim", "--", "echo", "hi")
    assert sorted(done.out.splitlines()) == ["local: hi", "sim: hi"]


def test_exec_that_fails_is_exit_1(gpuctl: Gpuctl) -> None:
    done = gpuctl("exec", "sim", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=1)
    assert done.json() == [{"node": "sim", "exit_code": 3, "timed_out": False, "stdout": "out\n", "stderr": "err\n"}]


def test_clean_ends_what_was_agreed_to_and_nothing_that_came_later(gpuctl: Gpuctl) -> None:
    gpuctl("gpus", "sim", "--json")  # which makes the simulated GPUs
    folder = str(gpuctl.folder / "state" / "simulated" / "sim")
    with holding(folder, options=["--mib", "300"]) as shown:
        screen = gpuctl.on_terminal("clean", "sim", "--force")
        screen.shows(b"end these? [y/N]")
        with holding(folder, options=["--mib", "200"]) as late:
            screen.press(b"y\n")
            assert screen.end() == 1
            assert shown.wait(10) == -15
            assert late.poll() is None


def test_doctor(dead_too: Gpuctl) -> None:
    (_here, report) = dead_too("doctor", "sim", "--json").json()
    assert report["node"] == "sim"
    assert {check["verdict"] for check in report["checks"]} <= {"ok", "warn"}
    done = dead_too("doctor", "dead", "sim", code=4)
    assert "FAIL" in done.out


def test_nodes_names_its_file(gpuctl: Gpuctl) -> None:
    answer = gpuctl("nodes", "--json").json()
    assert answer["inventory"] == str(gpuctl.inventory)
    assert [node["node"] for node in answer["nodes"]] == ["local", "sim"]


def test_containers_of_a_host() -> None:
    listing = (
        "VMID       Status     Lock         Name\n"
        "100        running                 ct-a\n"
        "101        stopped    backup       ct-b\n"
    )
    assert containers(listing) == [
        {"container": 100, "state": "running", "lock": None, "name": "ct-a"},
        {"container": 101, "state": "stopped", "lock": "backup", "name": "ct-b"},
    ]
