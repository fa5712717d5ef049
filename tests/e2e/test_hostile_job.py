"""A job that does everything to live on. `gpuctl kill` ends all of it, and nothing that is not ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.processes import find, scan
from tests.e2e.site import HOLD, REPOSITORY, Site
from tests.parts.gpus import holding
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("hostile") / "hostile"
    source = Path(__file__).with_name("hostile.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", str(program), str(source)], check=True)
    return program


@pytest.fixture
def devices(far: Site) -> Path:
    """The folder of gpu1's simulated device files."""
    far("gpus", "gpu1")
    (device,) = (far.folder / "far").rglob("dev/nvidiactl")
    return device.parent


def holders(devices: Path) -> set[int]:
    """All living processes with a device file open: looked at directly, not through the program."""
    found = set()
    for process in scan():
        folder = f"/proc/{process.id.pid}/fd"
        try:
            targets = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
        except OSError:
            continue
        if process.alive and any(target.startswith(str(devices)) for target in targets):
            found.add(process.id.pid)
    return found


def launch(far: Site, hostile: Path, devices: Path, *words: str) -> str:
    """The hostile job on GPU 0, with all of its processes at work."""
    bare = f"PYTHONPATH={REPOSITORY} GPUCTL_SIMULATION={devices.parent} CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
    hold = f"exec env {bare} $(command -v python3) -m gpuctl.simulation.hold --mib 7000 --ignore-term"
    script = f'hold="{hold}"; exec {hostile} "$hold" {devices}/nvidiactl'
    run = far.run_of(script, *words, node="gpu1", gpus="[0]", name="hostile")
    far.await_log(run, b"all there")
    far.await_log(run, b"holding 7000 MiB")
    return run


@pytest.fixture
def reader(devices: Path) -> Iterator[int]:
    """Who only reads the GPUs, as a monitor by NVML does: the device files are open, no memory is held."""
    script = f"import time; f = open('{devices}/nvidiactl'); g = open('{devices}/nvidia0'); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        wait_until(lambda: process.pid in holders(devices))
        yield process.pid
        process.kill()


def test_after_kill_none_of_it_lives(far: Site, hostile: Path, devices: Path, reader: int) -> None:
    other = far.run_of(f"exec {HOLD} --mib 500", node="gpu1", gpus="[1]", name="other")
    far.await_log(other, b"holding")
    before = holders(devices)
    run = launch(far, hostile, devices)
    ours = holders(devices) - before
    assert len(ours) >= 5, "and one that is another process each time"
    assert far.used_mib("gpu1") == 7500

    done = far("kill", run, "--grace", "0.2s", "--json").json()
    assert (done[0]["state"], done[0]["gpus_empty"]) == ("killed", True)
    assert holders(devices) == before, "none of ours lives, all others do"
    assert [gpu["memory_used_mib"] for gpu in far.gpus("gpu1")][:2] == [0, 500]
    assert far.row(other)["state"] in ("loading", "running")
    assert reader in {event["pid"] for event in far.journal(run, "spared")} <= before
    killed = {event["pid"] for event in far.journal(run, "killed")}
    assert not killed & before
    left = [process for process in scan() if str(devices) in " ".join(process.argv) and process.alive]
    assert [process for process in left if process.id.pid not in before] == []


@pytest.mark.parametrize("verb", ["supervise", "keep"])
def test_nor_where_what_watched_it_was_killed(verb: str, far: Site, hostile: Path, devices: Path) -> None:
    run = launch(far, hostile, devices)
    far.kill_9(verb, run if verb == "supervise" else "")
    assert far("kill", run, "--grace", "0.2s", "--json").json()[0]["gpus_empty"] is True
    assert holders(devices) == set()
    assert far.used_mib("gpu1") == 0
    assert [process for process in scan() if str(devices) in " ".join(process.argv) and process.alive] == []


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_a_shell_in_a_tmux_server_that_the_job_started_lives_on(far: Site, hostile: Path, devices: Path) -> None:
    tmux = f"tmux -S {far.folder}/tmux"
    pidfile = far.folder / "shell"
    setup = f"{tmux} new-session -d 'exec 5<{devices}/nvidiactl; echo $$ > {pidfile}; exec sleep 600'"
    run = launch(far, hostile, devices, "--setup", setup)
    wait_until(lambda: pidfile.exists() and pidfile.read_text())
    shell = int(pidfile.read_text())
    try:
        far("kill", run, "--grace", "0.2s")
        assert find(shell) is not None, "a person's shell"
        assert holders(devices) == {shell}
        assert shell in {event["pid"] for event in far.journal(run, "spared")}
        assert far.row(run)["state"] == "killed"
    finally:
        subprocess.run([*tmux.split(), "kill-server"], check=True)


def test_a_holder_that_is_not_ours_keeps_its_memory(far: Site, hostile: Path, devices: Path) -> None:
    """The GPU is then not empty: the run says who holds it, and kill exits 1."""
    run = launch(far, hostile, devices)
    with holding(str(devices.parent), visible="0", options=["--mib", "300"]) as foreign:
        done = far("kill", run, "--grace", "0.2s", "--json", code=1)
        assert done.json()[0]["gpus_empty"] is False
        assert f"pid {foreign.pid}" in done.err
        assert foreign.poll() is None
        assert holders(devices) == {foreign.pid}
        assert str(foreign.pid) in far("clean", "gpu1", code=1).out
        assert foreign.poll() is None, "not proven ours: spared"
        forced = far("clean", "gpu1", "--gpus", "0", "--force", "--json").json()
        assert [holder["pid"] for holder in forced["killed"]] == [foreign.pid]
        wait_until(lambda: foreign.poll() is not None)
    assert far("clean", "gpu1", "--json").json()["empty"] is True


def test_the_hostile_workload_that_ships(site: Site) -> None:
    run = site.run_of("exec python3 -m gpuctl.simulation.hostile", gpus="1", name="hostile")
    wait_until(lambda: site.log(run).count(b"hostile: ") >= 6)
    done = site("kill", run, "--grace", "0.2s", "--json").json()[0]
    assert (done["state"], done["gpus_empty"]) == ("killed", True)
    named = [int(word) for word in site.log(run).split() if word.isdigit() and int(word) > 2048]
    assert named
    left = [process for process in scan() if process.alive and "gpuctl.simulation.hostile" in process.argv]
    assert not [process for process in left if process.id.pid in named]
    assert site.used_mib("sim") == 0
