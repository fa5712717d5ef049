"""Where a stuck attempt's processes stand, kept before they are ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuctl.node import stacks
from gpuctl.node.processes import Process, children, find
from gpuctl.wire.runspec import Finding, Watch
from tests.parts.node import TestNode
from tests.waiting import wait_until

SPY = Path(sys.executable).parent / "py-spy"
STUCK = """
import threading, time

def waits_for_its_turn():
    time.sleep(600)

threading.Thread(target=waits_for_its_turn).start()
print("stuck", flush=True)
waits_for_its_turn()
"""


RANKS = """
import os, signal, threading, time

def waits_for_the_others():
    time.sleep(600)

def reaps(ranks):
    os.wait()
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)

ranks = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=waits_for_the_others).start()
        waits_for_the_others()
    ranks.append(pid)
time.sleep(0.5)
print("stuck", flush=True)
reaps(ranks)
"""


@contextmanager
def stuck(folder: Path, program: str = STUCK, **environ: str) -> Iterator[Process]:
    """A Python program that waits for ever, its output in the file `log`."""
    (folder / "stuck.py").write_text(program)
    with (folder / "log").open("a") as log:
        child = subprocess.Popen(
            [os.path.realpath(sys.executable), "stuck.py"],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", **environ},
        )
    try:
        wait_until(lambda: "stuck" in (folder / "log").read_text(), what="the stuck program")
        found = find(child.pid)
        assert found is not None
        yield found
    finally:
        for pid in [*children(child.pid), child.pid]:
            os.kill(pid, signal.SIGKILL)
        child.wait()


def kept(folder: Path, *ours: Process, abort: bool) -> tuple[stacks.Stacks, str, list[str]]:
    signals: list[str] = []
    told = stacks.keep(
        str(folder),
        ours,
        abort=abort,
        pause=time.sleep,
        on_kill=lambda _process, signal, _why: signals.append(signal),
    )
    return told, (folder / stacks.FILE).read_text(), signals


def test_state_and_place_of_each_thread(tmp_path: Path) -> None:
    with stuck(tmp_path) as process:
        told, text, signals = kept(tmp_path, process, abort=False)
    assert told == stacks.Stacks(1, 0, 0) and signals == []
    assert f"pid {process.id.pid}" in text and "stuck.py" in text
    assert "2 threads: S in " in text


def test_a_python_that_catches_sigabrt_prints_every_thread(tmp_path: Path) -> None:
    with stuck(tmp_path, PYTHONFAULTHANDLER="1") as process:
        told, text, signals = kept(tmp_path, process, abort=True)
    assert told == stacks.Stacks(1, 0, 1) and signals == ["ABRT"]
    assert f"printed to {tmp_path}/log after SIGABRT" in text
    assert text.count("in waits_for_its_turn") == 2
    assert "stuck\n" not in text  # what it had printed before is not repeated


def test_a_launcher_that_reaps_its_ranks_cuts_none_of_them_short(tmp_path: Path) -> None:
    with stuck(tmp_path, RANKS, PYTHONFAULTHANDLER="1") as launcher:
        ranks = [found for found in map(find, children(launcher.id.pid)) if found is not None]
        told, text, _ = kept(tmp_path, launcher, *ranks, abort=True)
    assert told == stacks.Stacks(5, 0, 5)
    for rank in ranks:
        section = text.partition(f"== pid {rank.id.pid} ")[2].partition("after SIGABRT")[2].partition("== pid")[0]
        assert section.count("in waits_for_the_others") == 2, text  # of its two threads, whole
    assert "in reaps" in text


def test_one_that_does_not_catch_it_gets_no_signal(tmp_path: Path) -> None:
    with stuck(tmp_path) as process:
        told, _, signals = kept(tmp_path, process, abort=True)
        assert find(process.id.pid) == process or find(process.id.pid) is not None
    assert told.aborted == 0 and signals == []


@pytest.mark.skipif(not SPY.exists(), reason="py-spy is not installed")
def test_py_spy_of_the_jobs_own_environment_comes_first(tmp_path: Path) -> None:
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    shutil.copy(SPY, venv)
    with stuck(tmp_path, VIRTUAL_ENV=str(venv.parent), PYTHONFAULTHANDLER="1") as process:
        told, text, signals = kept(tmp_path, process, abort=True)
        if told.dumped == 0:
            pytest.skip("py-spy may not look into processes here")
    assert told == stacks.Stacks(1, 1, 0) and signals == []
    assert text.count("waits_for_its_turn (") == 2


def test_a_stalled_job_leaves_its_stacks_before_it_is_ended(sim: TestNode) -> None:
    (sim.folder / "job.py").write_text(
        "import time\ndef never_comes_back(): time.sleep(600)\nprint('step 1/9', flush=True)\nnever_comes_back()\n"
    )
    watch = Watch(progress=r"step (?P<done>\d+)/(?P<total>\d+)", stall=Finding(4.0, "kill"))
    sim.start(sim.job(f"{os.path.realpath(sys.executable)} job.py", gpus=[0], watch=watch))
    assert sim.wait_over().state == "failed"
    assert [event["class"] for event in sim.events(type="incident")] == ["stalled"]
    (event,) = sim.events(type="stacks")
    assert event["processes"] == 1 and event["dumped"] + event["aborted"] == 1
    text = (sim.state_dir / "runs/job-1/attempts/1" / event["file"]).read_text()
    assert "never_comes_back" in text
    order = [event["type"] for event in sim.events()]
    assert order.index("incident") < order.index("stacks") < order.index("attempt_exited")
