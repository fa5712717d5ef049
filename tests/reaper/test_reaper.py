"""Ending a run: the order of signals, children that fight back, and those who are spared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuctl.node import processes, reaper
from gpuctl.node.processes import Process, ProcessId, alive, children, find, scan
from gpuctl.node.proof import Proof
from gpuctl.node.reaper import Reaped, end, end_only, signal_number
from gpuctl.wire.runspec import Stop
from tests.reaper.parts import Kept, id_of, kept, pause_never, started
from tests.waiting import wait_until

QUICKLY = Stop("TERM", 0.2)


def reap(job: Kept, stop: Stop = QUICKLY) -> Reaped:
    return end(job.job, job.proof(), stop, pause=time.sleep, on_kill=job.on_kill)


def kill(job: Kept) -> Reaped:
    return reaper.kill(job.proof(), pause=time.sleep, on_kill=job.on_kill)


class Waited:
    """A pause that adds up what was waited for: the machine's load is not in it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, seconds: float) -> None:
        self.seconds += seconds
        time.sleep(seconds)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


@pytest.mark.parametrize(
    "way", ["stay", "chain", "respawn", "breed", "leader", "wipe", "--bare chain", "--bare respawn", "--bare breed"]
)
def test_none_of_them_outlives_it(hostile: str, tmp_path: Path, way: str) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    line = " & ".join(f"{hostile} --detach {way} {device}" for _ in range(3))
    with kept(["/bin/sh", "-c", f"{line} & sleep 60 & exec {hostile} stay"], tmp_path) as job:
        job.named(f"h-{way.rsplit(maxsplit=1)[-1]}")
        reaped = reap(job)
        assert reaped == Reaped()
        assert job.living() == [] and job.all_gone()
        assert ("KILL" in {name for _, name in job.killed}) and job.killed[0] == (job.job.pid, "TERM")


def test_a_crowd_is_ended_at_once(hostile: str, tmp_path: Path) -> None:
    line = "; ".join(f"{hostile} --detach --bare stay" for _ in range(60))
    with kept(["/bin/sh", "-c", f"{line}; sleep 60"], tmp_path) as job:
        job.named("h-stay", 60)
        assert kill(job) == Reaped()
        assert job.all_gone()
        assert len([pid for pid, name in job.killed if name == "KILL"]) == 62


def test_who_sees_another_die_can_do_nothing(hostile: str, tmp_path: Path) -> None:
    """All are stopped before the first is killed. The one that watches is the youngest, and others lie between."""
    ready, reacted = tmp_path / "ready", tmp_path / "reacted"
    code = f"""if True:
        import os, subprocess, time
        watched, held = os.pipe()
        for _ in range(80):
            subprocess.Popen([{hostile!r}, "stay"])
        if os.fork() == 0:
            os.close(held)
            open({str(ready)!r}, "w")
            os.read(watched, 1)
            open({str(reacted)!r}, "w")
        time.sleep(60)
    """
    with kept(python(code), tmp_path) as job:
        wait_until(ready.exists)
        assert kill(job) == Reaped() and job.all_gone()
        assert not reacted.exists()


def test_the_first_process_is_asked_alone(tmp_path: Path) -> None:
    """It ends its own children in its own order, as one that writes a checkpoint needs: nobody else gets a signal."""
    done = tmp_path / "done"
    code = f"""if True:
        import os, signal, subprocess, sys, time
        loader = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        def stop(*_):
            assert loader.poll() is None
            time.sleep(0.2)
            loader.kill()
            open({str(done)!r}, "w").write(str(loader.wait()))
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        open({str(done)!r}, "w")
        while True: time.sleep(60)
    """
    with kept(python(code), tmp_path) as job:
        wait_until(done.exists)
        waited = Waited()
        assert end(job.job, job.proof(), Stop("TERM", 30.0), pause=waited, on_kill=job.on_kill) == Reaped()
        assert waited.seconds < 10  # and the grace ends with it
        assert done.read_text() == "-9"
        assert job.killed == [(job.job.pid, "TERM")]


def test_the_rest_is_asked_after_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    child = f"""if True:
        import signal, sys, time
        signal.signal(signal.SIGINT, lambda *_: (open({str(said)!r}, "a").write("child"), sys.exit(0)))
        open({str(said)!r}, "w")
        time.sleep(60)
    """
    script = f"import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    with kept(python(script), tmp_path) as job:
        wait_until(said.exists)
        assert not reap(job, Stop("INT", 5.0)).left
        assert said.read_text() == "child"
        assert [name for _, name in job.killed] == ["INT", "INT"] and job.killed[0][0] == job.job.pid


def test_a_stopped_process_hears_the_stop_signal(tmp_path: Path) -> None:
    with kept(["/bin/sleep", "60"], tmp_path) as job:
        processes.signal(job.job, 19)
        wait_until(lambda: (now := processes.find(job.job.pid)) and now.state == "T")
        assert not reap(job, Stop("TERM", 30.0)).left
        assert job.killed == [(job.job.pid, "TERM")]


def test_kill_does_not_ask(hostile: str, tmp_path: Path) -> None:
    with kept([hostile, "breed"], tmp_path) as job:
        job.named("h-breed")
        assert not kill(job).left
        assert job.killed == [(job.job.pid, "KILL")]


def test_nothing_to_end_needs_no_waiting(tmp_path: Path) -> None:
    with kept(["/bin/true"], tmp_path) as job:
        wait_until(lambda: not alive(job.job))
        reaped = end(
            job.job, job.proof(), Stop(), pause=lambda s: None if s < 0.01 else pause_never(s), on_kill=job.on_kill
        )
        assert reaped == Reaped() and job.killed == []


def test_who_is_not_ours_lives_on(hostile: str, tmp_path: Path) -> None:
    """A shell in a tmux server that the job started, another run's process, one that is nobody's with the file open."""
    device = tmp_path / "nvidia0"
    device.touch()
    tmux = f"tmux -S {tmp_path}/socket -f /dev/null new-session -d"
    other = f"GPUCTL_RUN=other-1 exec -a other {hostile} --detach breed"
    script = f"{tmux} 'exec {hostile} stay {device}'; ({other}) & exec {hostile} --detach --bare stay {device}"
    with started([hostile, "stay", str(device)]) as nobodys, kept(["/bin/bash", "-c", script], tmp_path) as job:
        server = job.named("tmux: server")[0]
        stays, breed = job.named("h-stay", 2), job.named("h-breed")[0]
        person = next(process for process in stays if process.ppid == server.id.pid)
        reaped = kill(job)
        assert {process.id for process in job.living()} == {server.id, person.id, breed.id}
        assert alive(id_of(nobodys.pid)) and not reaped.left
        assert {spared.process.id for spared in reaped.spared} == {server.id, person.id, breed.id}
        assert "T" not in {process.state for process in job.living()}


def test_a_frozen_one_goes_on_when_its_proof_breaks(
    hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept([hostile, "stay"], tmp_path) as job:
        job.named("h-stay")
        proof = job.proof()
        chase = reaper._chase

        def break_it(*arguments: object) -> bool:
            monkeypatch.setattr(reaper, "_chase", chase)
            proof._broken[job.job] = "is somebody else's after all"
            return False

        monkeypatch.setattr(reaper, "_chase", break_it)
        reaped = reaper.kill(proof, pause=time.sleep, on_kill=job.on_kill)
        assert not reaped.left and [spared.why for spared in reaped.spared] == ["is somebody else's after all"]
        wait_until(lambda: (now := processes.find(job.job.pid)) and now.state != "T")
        assert job.killed == []


def test_what_no_signal_reaches_is_named(hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with another user's process, which a setuid program makes: no long wait, no endless one."""
    real: Callable[[ProcessId, int], bool] = processes.signal
    with kept(["/bin/sh", "-c", f"{hostile} stay & sleep 60"], tmp_path) as job:
        theirs = job.named("h-stay")[0]
        monkeypatch.setattr(processes, "signal", lambda process, number: process != theirs.id and real(process, number))
        waited = Waited()
        reaped = reaper.kill(job.proof(), pause=waited, on_kill=job.on_kill)
        assert [process.id for process in reaped.left] == [theirs.id]
        assert waited.seconds < 5
        assert [process.id for process in job.living()] == [theirs.id]


def test_a_reused_pid_is_not_the_first_process(hostile: str, tmp_path: Path) -> None:
    with started([hostile, "stay"]) as nobodys, kept(["/bin/sleep", "60"], tmp_path) as job:
        was = ProcessId(nobodys.pid, id_of(nobodys.pid).start - 1)
        assert end(was, job.proof(), QUICKLY, pause=time.sleep, on_kill=job.on_kill) == Reaped()
        assert alive(id_of(nobodys.pid))


def test_only_these_are_ended(hostile: str, tmp_path: Path) -> None:
    told: list[tuple[int, str, str]] = []

    def on_kill(process: Process, name: str, why: str) -> None:
        told.append((process.id.pid, name, why))

    with started(["/bin/sh", "-c", f"{hostile} --detach stay; sleep 60"]) as parent:
        child = wait_until(lambda: [one for one in scan() if one.comm == "sleep" and one.ppid == parent.pid])[0]
        found = [process for process in scan() if process.id.pid == parent.pid]
        left = end_only(found, QUICKLY, "a person ordered it", pause=time.sleep, on_kill=on_kill)
        assert left == [] and told[0] == (parent.pid, "TERM", "a person ordered it")
        assert alive(child.id)
        os.kill(child.id.pid, 9)


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("SIGINT", 2), ("usr1", 10)])
def test_signals_by_name(name: str, number: int) -> None:
    assert signal_number(name) == number
    with pytest.raises(ValueError, match="is no signal's name"):
        signal_number("TERMINATE")


def test_children_of_who_has_a_dead_keepers_pid_now_are_nobodys(tmp_path: Path) -> None:
    person = subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300 & wait"], start_new_session=True)
    try:
        kids = wait_until(lambda: len(children(person.pid)) == 2 and [find(pid) for pid in children(person.pid)])
        proof = Proof("old-run-1", str(tmp_path), [ProcessId(person.pid, 1)])
        end(None, proof, Stop("TERM", 0.1), pause=time.sleep, on_kill=lambda *_: None)
        assert all(kid is not None and alive(kid.id) and find(kid.id.pid).state != "T" for kid in kids)
    finally:
        for pid in [*children(person.pid), person.pid]:
            os.kill(pid, 9)
        person.wait()
