"""What a start leaves behind where it is refused, fails, or is asked for twice at once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuctl.node.leases import Leases
from tests.parts.node import TestNode, node
from tests.waiting import wait_until


def leased(sim: TestNode) -> dict[str, list[str]]:
    """The indices of the GPUs, by run, that leases are held on."""
    rows = sim.call("gpus")[-1]["devices"]
    index = {row["device"]["uuid"]: row["device"]["index"] for row in rows}
    held: dict[str, list[str]] = {}
    for uuid, leases in Leases(sim.spec).held().items():
        for lease in leases:
            held.setdefault(lease.run, []).append(index[uuid])
    return held


@contextmanager
def spoilt(run: Path, journal: str = "journal.jsonl") -> Iterator[None]:
    """No supervisor can begin the run: a folder stands where its journal is to be, as soon as there is a run."""
    over = threading.Event()

    def spoil() -> None:
        while not over.is_set():
            if run.is_dir():
                (run / journal).mkdir()
                return

    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    try:
        yield
    finally:
        over.set()
        spoiler.join()


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_start_that_failed_leaves_nothing_behind(sim: TestNode, gpus: int) -> None:
    run = sim.state_dir / "runs/job-1"
    with spoilt(run):
        answer = sim.start(sim.job("sleep 60", gpus=gpus), secrets={"TOKEN": "x"})
    assert answer["error"]["code"] == 1 and "did not start" in answer["error"]["what"]
    assert "journal.jsonl" in answer["error"]["what"], "it says why, though the file that said so is gone"
    assert os.listdir(run.parent) == []
    assert leased(sim) == {}
    assert sim.ps() == {}
    assert sim.start(sim.job("true", gpus=gpus))["run"]["run"] == "job-1", "the same id may be used again"
    assert sim.wait_over().state == "succeeded"


def test_a_supervisor_that_began_and_died_at_once_is_no_failed_start(sim: TestNode) -> None:
    sim.fault("attempt-forked")
    assert sim.start(sim.job("true", gpus=1))["run"]["run"] == "job-1"
    sim.ps()
    assert sim.wait_over().state == "succeeded"


def test_a_run_that_is_just_being_made_is_left_to_its_maker(sim: TestNode) -> None:
    """Who only looks would start its supervisor without its secrets."""
    sim.start(sim.job("true", gpus=0))
    sim.wait_over()
    made = sim.state_dir / "runs/made-1"
    (made / "requests").mkdir(parents=True)
    for name in ("spec.json", "launch.json"):
        text = (sim.state_dir / "runs/job-1" / name).read_text()
        (made / name).write_text(text.replace('"job-1"', '"made-1"'))
    (made / "lock").touch()
    assert sim.ps()["made-1"]["state"] == "starting"
    assert sim.events("made-1") == []
    os.utime(made, (1.0, 1.0))
    sim.ps()
    assert sim.wait_over("made-1").state == "succeeded"


def test_the_same_run_asked_for_twice_at_once_has_one_lease(sim: TestNode) -> None:
    """The slower of both comes to the lock when the run has long begun."""
    sim.start(sim.job("true", "before-1", gpus=1))  # so that the folder of leases is there
    sim.wait_over("before-1")
    folder = os.path.realpath(sim.spec.lock_dir)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    slow = sim.popen("start", spec=sim.job("sleep 60", gpus=[1]).to_json())
    wait_until(lambda: folder in opened(slow.pid), what="it at the lock")
    os.kill(slow.pid, signal.SIGSTOP)
    os.close(lock)
    assert sim.start(sim.job("sleep 60", gpus=[0]))["run"]["run"] == "job-1"
    sim.wait_state("loading")
    os.kill(slow.pid, signal.SIGCONT)
    out, _ = slow.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["run"]["run"] == "job-1"
    assert leased(sim) == {"job-1": [0]}


def opened(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


NO_TMUX_SOCKET = 'd=/tmp/tmux-$(id -u); mkdir -p -m 0700 $d && mount -t tmpfs -o mode=0777 none $d && exec "$@"'


def test_a_view_that_does_not_open_is_a_warning(tmp_path: Path) -> None:
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("this user may mount nothing")
    flags = ("-m", "sh", "-c", NO_TMUX_SOCKET, "sh", sys.executable, "-I")
    with node(tmp_path, python="unshare", flags=flags) as sim:
        answer = sim.start(sim.job("true", gpus=0, launcher="tmux"))
        assert answer["run"]["run"] == "job-1"
        assert "tmux" in answer["warnings"][0] and "runs all the same" in answer["warnings"][0]
        assert sim.wait_over().state == "succeeded"
