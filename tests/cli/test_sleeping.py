"""A controller that slept: its node gave the streams up meanwhile, and each command goes on where it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpuctl.node.processes import children, find
from tests.parts.command import Gpuctl
from tests.waiting import wait_until

JOB = """\
name: job
node: sim
gpus: 0
stop: {{grace: 60s}}
workdir: {work}
command: |
  trap 'until test -e gate; do sleep 0.05; done; echo over; exit 0' TERM
  echo begun $GPUCTL_ATTEMPT
  while :; do sleep 0.05; done
"""


@pytest.fixture
def asleep_soon(gpuctl: Gpuctl) -> Gpuctl:
    gpuctl.inventory.write_text(gpuctl.inventory.read_text().replace("keepalive: 2", "keepalive: 0.3"))
    gpuctl.job(JOB.format(work=gpuctl.work))
    return gpuctl


def verbs(process: subprocess.Popen[bytes]) -> list[int]:
    """Those that it has called on this machine, as far as they live."""
    found = [find(pid) for pid in children(process.pid)]
    return [one.id.pid for one in found if one is not None and one.alive]


def follows(process: subprocess.Popen[bytes]) -> bool:
    """Whether a verb of it waits for what comes."""
    with contextlib.suppress(FileNotFoundError):  # a descriptor that was closed in between
        files = [link for pid in verbs(process) for link in Path(f"/proc/{pid}/fd").iterdir()]
        return any(os.readlink(link) == "anon_inode:inotify" for link in files)
    return False


def sleep(*commands: subprocess.Popen[bytes]) -> None:
    """Stopped for as long as it takes the node to give all of their streams up."""
    for one in commands:
        one.send_signal(signal.SIGSTOP)
    wait_until(lambda: not any(map(verbs, commands)), what="the node gives them up")
    for one in commands:
        one.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("asked", ["kill", "relaunch"])
def test_no_stream_that_was_given_up_is_taken_for_one_that_is_complete(asleep_soon: Gpuctl, asked: str) -> None:
    gpuctl = asleep_soon
    run = gpuctl("launch", "job.yaml", "--json").json()["run"]
    asking = gpuctl.start(asked, run, "--json")
    journal = gpuctl.folder / "state" / "runs" / run / "journal.jsonl"
    wait_until(lambda: '"request"' in journal.read_text(), what="the request's answer")
    watching = [gpuctl.start("wait", run), gpuctl.start("tail", run, "-f"), gpuctl.start("events", run, "-f")]
    for one in watching:
        wait_until(lambda one=one: follows(one), what="its stream")  # type: ignore[misc]
    sleep(asking, *watching)
    (gpuctl.work / "gate").write_text("")
    out, err = asking.communicate(timeout=30)
    assert asking.returncode == 0, err
    assert b"internal error" not in err
    if asked == "relaunch":
        assert b'"attempt": 2' in out
        gpuctl("kill", run)
    waited, tailed, told = (one.communicate(timeout=30) for one in watching)
    assert waited[0].startswith(f"{run}: killed".encode()), waited
    assert tailed[0].startswith(b"begun 1\nover\n"), tailed
    assert b"run_finished" in told[0], told
