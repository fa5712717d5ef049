"""What the machine says beside the log, for real: cgroups with limits, the kernel's log, full disks; simulated Xids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node.kernel import KernelLog
from gpuctl.wire.runspec import Outputs
from tests.parts.node import TestNode
from tests.waiting import wait_until

GROWS = "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))\n"
POOL = """
from concurrent.futures import ProcessPoolExecutor

def grow():
    x = []
    while True: x.append(bytearray(b'x' * (1 << 20)))

with ProcessPoolExecutor(1) as pool:
    pool.submit(grow).result()
"""
LIMIT = 160 << 20  # keeper and supervisor live in it too
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def container(sim: TestNode) -> Iterator[Path]:
    """A memory cgroup with a limit, in which all that the node starts lives, as in a container."""
    folder = limited_cgroup()
    sim.python = ["/bin/sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh", *sim.python]
    yield folder
    sim.close()
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), what="an empty cgroup")
    folder.rmdir()


def limited_cgroup() -> Path:
    if os.getuid() != 0:
        pytest.skip("only root may make a cgroup")
    limits = {V1: "memory.limit_in_bytes", V2: "memory.max"}
    for mount, limit in limits.items():
        folder = mount / f"gpuctl-test-{os.getpid()}"
        if not mount.is_dir() or not os.access(mount, os.W_OK):
            continue
        folder.mkdir()
        if (folder / limit).exists():
            (folder / limit).write_text(str(LIMIT))
            return folder
        folder.rmdir()
    pytest.skip("no memory controller of cgroup v1 or v2 here")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def python(sim: TestNode, text: str) -> str:
    """A command that runs this program."""
    (sim.folder / "job.py").write_text(text)
    return f"{sys.executable} job.py"


def set_faults(sim: TestNode, **faults: object) -> None:
    folder = sim.state_dir / "simulated" / "sim"
    aside = folder / "faults.new"
    aside.write_text(json.dumps(faults))
    aside.rename(folder / "faults.json")


def incidents(sim: TestNode) -> list[tuple[str, bool]]:
    return [(event["class"], event["fatal"]) for event in sim.events(type="incident")]


def evidence(sim: TestNode) -> list[dict[str, Any]]:
    """Of the last incident."""
    found: list[dict[str, Any]] = sim.events(type="incident")[-1]["evidence"]
    return found


def waits(sim: TestNode, then: str) -> str:
    """A command that waits for the file `gate`."""
    return f"sh -c 'echo step 1/9; while [ ! -e gate ]; do sleep 0.05; done; {then}'"


def test_a_job_that_the_kernel_kills_for_memory(sim: TestNode, container: Path) -> None:
    sim.start(sim.job(python(sim, GROWS), gpus=0))
    assert sim.wait_over().state == "failed"
    assert incidents(sim) == [("host_oom", True)]
    pid = sim.events(type="attempt_started")[0]["pid"]
    if KernelLog().readable:
        assert evidence(sim)[0]["pid"] == pid
        assert f"Killed process {pid}" in evidence(sim)[0]["text"]
    counter = next(path for path in map(container.joinpath, ("memory.oom_control", "memory.events")) if path.exists())
    counted = [item["text"] for item in evidence(sim) if item["source"] == "counters"]
    assert counted[0] == f"{counter}: oom_kill 0 → 1 (it counts the processes of its own cgroup)"
    assert "neighbours too" in counted[-1]


def test_a_worker_that_the_kernel_kills_for_memory(sim: TestNode, container: Path) -> None:
    sim.start(sim.job(python(sim, POOL), gpus=0))
    sim.wait_over()
    assert incidents(sim) == [("host_oom", True)]
    assert any("terminated abruptly" in item["text"] for item in evidence(sim))


def test_a_worker_whose_end_nobody_minds_is_told(sim: TestNode, container: Path) -> None:
    (sim.folder / "grows.py").write_text(GROWS)
    sim.start(sim.job(waits(sim, "exit 0").replace("while", f"{sys.executable} grows.py; while"), gpus=0))
    wait_until(lambda: incidents(sim) == [("host_oom", False)], what="the incident that ends nothing")
    (sim.folder / "gate").touch()
    assert sim.wait_over().state == "succeeded"


def test_an_oom_kill_is_found_by_the_supervisor_that_comes_after(sim: TestNode, container: Path) -> None:
    sim.start(sim.job(f"{waits(sim, '')}; exec {python(sim, GROWS)}", gpus=0))
    sim.wait_state("running")
    sim.kill_9("supervise")
    (sim.folder / "gate").touch()
    sim.wait_over()
    assert incidents(sim) == [("host_oom", True)]


def test_a_sigkill_from_somebody_is_no_want_of_memory(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'kill -9 $$'", gpus=0))
    sim.wait_over()
    assert incidents(sim) == [("unknown", True)]
    assert "somebody or something else" in sim.events(type="incident")[0]["advice"]
    assert "OOM kill" in evidence(sim)[-1]["text"]


def test_a_hardware_fault_is_told_at_once_and_explains_the_end(sim: TestNode) -> None:
    sim.start(sim.job(waits(sim, "exit 3"), gpus=[0]))
    sim.wait_state("running")
    set_faults(sim, xids=[[31, 1], [79, 0], [45, 0]])
    (event,) = wait_until(lambda: sim.events(type="xid"), what="the Xid in the journal")
    assert (event["xid"], event["gpu"], event["class"], event["source"]) == (79, 0, "xid_hw", "NVML")
    assert "fallen off the bus" in event["text"]
    wait_until(lambda: incidents(sim) == [("xid_hw", False)], what="an incident that ends nothing")
    (sim.folder / "gate").touch()
    assert sim.wait_over().state == "blocked"
    assert incidents(sim)[-1] == ("xid_hw", True)


def test_an_xid_that_comes_with_the_end_is_in_time(sim: TestNode) -> None:
    folder = sim.state_dir / "simulated" / "sim"
    sim.start(sim.job(f"sh -c 'echo step 1/9; echo \"$1\" > {folder}/faults.json; exit 1' sh {{xids}}", gpus=[0],
                      params={"xids": '{"xids": [[31, 0]]}'}))  # fmt: skip
    sim.wait_over()
    assert incidents(sim)[-1] == ("cuda_illegal_access", True)


def test_a_full_disk_explains_a_failure_that_does_not_say_so(sim: TestNode, small_disk: Path) -> None:
    fills = f"sh -c 'cat /dev/zero > {small_disk}/big 2>/dev/null; echo writing failed; exit 1'"
    sim.start(sim.job(fills, gpus=0, outputs=Outputs([str(small_disk)])))
    assert sim.wait_over().state == "failed"
    assert incidents(sim)[-1] == ("disk_full", True)
    assert str(small_disk) in evidence(sim)[0]["text"]


def test_a_driver_that_hangs_is_told_ends_no_living_job_and_explains_a_failed_one(sim: TestNode) -> None:
    sim.start(sim.job(waits(sim, "exit 3"), gpus=[0]))
    sim.wait_state("running")
    set_faults(sim, hang_s=60)
    wait_until(lambda: incidents(sim) == [("driver_hung", False)], what="the incident that ends nothing")
    assert len(sim.jobs_of()) == 1
    (sim.folder / "gate").touch()
    life = sim.wait_over()
    assert life.state == "blocked" and life.why is not None and "driver" in life.why
    assert incidents(sim) == [("driver_hung", False), ("driver_hung", True)]
    assert sim.events(type="not_empty")[-1]["failure"] == "unreadable"
