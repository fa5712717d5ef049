"""Ctrl-C: in launch it says whether something was started; in whatever follows a run, the run goes on."""

from __future__ import annotations

import socket

import pytest

from gpuctl.node.processes import scan
from gpuctl.wire.names import ENDED
from tests.e2e.site import Site
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "words",
    [["tail", "-f"], ["events", "-f"], ["events", "-f", "--json"], ["wait"]],
    ids=" ".join,
)
def test_what_follows_a_run_detaches(words: list[str], site: Site) -> None:
    run = site.run_of("echo begun; sleep 60")
    site.await_log(run, b"begun")
    with site.following(words[0], run, *words[1:]) as follower:
        wait_until(lambda: follower.out or (words[0] == "wait" and _connected(follower.process.pid)))
        follower.interrupt()
        follower.ended(130)
        if words[0] != "wait":
            assert f"{run} goes on" in follower.err
            assert f"gpuctl kill {run}" in follower.err
    assert site.row(run)["state"] not in ENDED


def _connected(pid: int) -> bool:
    """Whether it has begun its conversation with the node: a process of the node's own below it."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return bool(children.read())


def test_launch_where_nothing_was_started_says_so(site: Site) -> None:
    """A host that takes the connection and says nothing: the launch has not asked for anything, and ends at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        entry = f"address: 127.0.0.1, port: {port}, connect_timeout: 60, ssh_config: /dev/null"
        site.inventory.write_text(f"{site.inventory.read_text()}  mute: {{{entry}}}\n")
        with site.following("launch", "--on", "mute", "--gpus", "0", "--", "true") as follower:
            silent.accept()
            follower.interrupt()
            follower.ended(130, within_s=10)
    assert follower.out == b""
    assert "nothing was started" in follower.err


@pytest.mark.parametrize("seen", ["nothing", "a process on the node", "the run"])
def test_the_demo_leaves_nothing_and_says_nothing_else(seen: str, site: Site) -> None:
    """Wherever Ctrl-C finds it: what it started is ended, and gone with its folder."""
    stage = site.folder / "tmp"
    stage.mkdir()
    with site.following("demo", env={"TMPDIR": str(stage)}) as follower:
        signs = {
            "nothing": lambda: "Simulated GPUs" in follower.err,
            "a process on the node": lambda: _connected(follower.process.pid),
            "the run": lambda: list(stage.glob("*/node/runs/*/journal.jsonl")),
        }
        wait_until(signs[seen], what=seen)
        follower.interrupt()
        follower.ended(130)
    assert "gpuctl kill" not in follower.err, "there is nothing that could be killed"
    assert "interrupted" in follower.err
    assert list(stage.iterdir()) == []
    assert [process.argv for process in scan() if str(stage) in " ".join(process.argv)] == []


def test_kill_left_by_ctrl_c_stands(site: Site) -> None:
    run = site.run_of("trap '' TERM; echo deaf; while :; do sleep 0.05; done", gpus="1")
    site.await_log(run, b"deaf")
    with site.following("kill", run, "--grace", "3s") as follower:
        site.await_event(run, "cleaning")
        follower.interrupt()
        follower.ended(130)
    assert "stands" in follower.err
    assert site.await_end(run)["state"] == "killed"


def test_attach_shows_the_view_and_ctrl_c_leaves_it(far: Site) -> None:
    far.job("name: seen\nnode: gpu1\ngpus: 0\nlauncher: tmux\ncommand: sh -c 'echo in the pane; sleep 60'\n")
    run = far("launch", "job.yaml", "--json").json()["run"]
    screen = far.on_terminal("attach", run)
    screen.shows(b"in the pane")
    screen.press(b"\x02c\x02%\x02:new-window\r")  # what opens a shell in any other tmux
    screen.press(b"\x03")
    assert screen.end() == 130
    assert f"{run} goes on".encode() in screen.shown
    assert f"gpuctl kill {run}".encode() in screen.shown
    assert far.row(run)["state"] not in ENDED
    panes = far("exec", "gpu1", "--", "tmux", "-L", "gpuctl", "list-panes", "-s", "-t", f"={run}")
    assert len(panes.out.splitlines()) == 1, panes.out
    assert "terminal" in far("attach", run, code=2).err


def test_nothing_of_progress_reaches_a_pipe(site: Site) -> None:
    assert site("wait", site.run_of("true")).err == ""
