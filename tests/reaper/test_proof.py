"""Whose a process is: what proves it, and what breaks the proof."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.node.processes import Process, ProcessId, find, scan
from gpuctl.node.proof import Proof, lineage, marked
from tests.reaper.parts import RUN, id_of, kept, marker, started
from tests.waiting import wait_until


def pids(found: list[Process]) -> set[int]:
    return {process.id.pid for process in found}


def test_orphans_of_orphans_are_ours_by_descent(hostile: str, tmp_path: Path) -> None:
    with kept(["/bin/sh", "-c", f"{hostile} --detach --bare stay /dev/null; sleep 60"], tmp_path) as job:
        orphan = job.named("h-stay")[0]
        assert orphan.ppid == job.keeper.pid and orphan.session != job.job.pid
        ours = pids(job.proof().ours(scan()))
        assert {orphan.id.pid, job.job.pid} <= ours
        assert not ours & {job.keeper.pid, os.getpid()}
        assert orphan.id.pid not in pids(job.proof(keeper=False).ours(scan()))  # nothing proves it without the keeper


def test_the_marker_proves_it_without_the_keeper(hostile: str, tmp_path: Path) -> None:
    with kept([hostile, "stay"], tmp_path) as job:
        assert pids(job.proof(keeper=False).ours(scan())) == {job.job.pid}
        assert not Proof("train-zzzzzz", str(tmp_path), []).ours(scan())


def test_what_descends_from_a_proven_process_is_proven(hostile: str, tmp_path: Path) -> None:
    with kept(["/bin/sh", "-c", f"{hostile} --bare stay; true"], tmp_path) as job:
        bare = job.named("h-stay")[0]
        assert pids(job.proof(keeper=False).ours(scan())) == {job.job.pid, bare.id.pid}


def test_a_marker_of_another_state_folder_is_not_meant(hostile: str, tmp_path: Path) -> None:
    with kept([hostile, "stay"], tmp_path / "theirs"):
        assert Proof(RUN, str(tmp_path / "ours"), []).ours(scan()) == []


@pytest.mark.parametrize(
    ("folder", "run"),
    [
        (f"/state/runs/{RUN}/attempts/1", RUN),
        (f"/state/runs/{RUN}x/attempts/1", None),
        (f"/state/runs/{RUN}/../other/attempts/1", None),
        (None, None),  # a callback's: it is told the run's name, and is no part of the job
    ],
)
def test_marker_and_folder_must_agree(folder: str | None, run: str | None) -> None:
    environment = {"GPUCTL_RUN": RUN} if folder is None else {"GPUCTL_RUN": RUN, "GPUCTL_DIR": folder}
    assert marked(environment, "/state") == run
    assert marked({}, "/state") is None


def test_once_proven_stays_proven(hostile: str, tmp_path: Path) -> None:
    with kept([hostile, "wipe"], tmp_path) as job:
        wait_until(lambda: job.proof(keeper=False).ours(scan()) == [], what="the environment is wiped")
        proof = job.proof()
        assert pids(proof.ours(scan())) == {job.job.pid}
        proof.roots.clear()
        assert pids(proof.ours(scan())) == {job.job.pid}


def test_the_journaled_first_process_is_ours(hostile: str, tmp_path: Path) -> None:
    with kept([hostile, "wipe"], tmp_path) as job:
        wait_until(lambda: job.proof(keeper=False).ours(scan()) == [], what="the environment is wiped")
        proof = job.proof(keeper=False)
        proof.remember(ProcessId(job.job.pid, job.job.start - 1))  # another process that had this pid
        assert proof.ours(scan()) == []
        proof.remember(job.job)
        assert pids(proof.ours(scan())) == {job.job.pid}


def test_zombies_are_nobody(tmp_path: Path) -> None:
    code = "import subprocess, time; child = subprocess.Popen(['/bin/true']); time.sleep(60)"
    with kept([sys.executable, "-c", code], tmp_path) as job:
        wait_until(lambda: [one for one in scan() if one.ppid == job.job.pid and one.state == "Z"])
        assert pids(job.proof().ours(scan())) == {job.job.pid}


def test_never_and_what_it_starts_are_not_ours(hostile: str, tmp_path: Path) -> None:
    env = {**os.environ, **marker(RUN, tmp_path)}
    with started(["/bin/sh", "-c", f"{hostile} stay; true"], env=env) as callback:
        wait_until(lambda: len(Proof(RUN, str(tmp_path), []).ours(scan())) == 2)
        proof = Proof(RUN, str(tmp_path), [], [id_of(callback.pid)])
        verdict = proof.read(scan())
        assert verdict.ours == [] and verdict.spared == []


@pytest.fixture
def tmux(tmp_path: Path) -> str:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    return f"tmux -S {tmp_path}/socket -f /dev/null"


def test_a_shell_in_a_tmux_server_that_the_job_started_is_spared(hostile: str, tmp_path: Path, tmux: str) -> None:
    pane = f"{hostile} --detach stay & {hostile} --bare stay & sleep 61"
    with kept(["/bin/sh", "-c", f"{tmux} new-session -d '{pane}'; sleep 60"], tmp_path) as job:
        server = job.named("tmux: server")[0]
        job.named("h-stay", 2)
        proof = job.proof()
        verdict = wait_until(lambda: (seen := proof.read(scan())) and len(seen.spared) >= 4 and seen)
        assert server.ppid == job.keeper.pid
        spared = {spared.process.id.pid: spared.why for spared in verdict.spared}
        persons = {process.id.pid for process in job.named("h-stay", 2)}
        assert persons <= set(spared) and "multiplexer" in spared[server.id.pid]
        assert any(f"descends from tmux: server ({server.id.pid})" in why for why in spared.values())
        assert {process.comm for process in verdict.ours} == {"sh", "sleep"}
        # By marker alone (tmux hands it to every session) they are not ours either.
        assert {process.comm for process in job.proof(keeper=False).ours(scan())} == {"sh", "sleep"}


def test_what_was_seen_in_a_pane_stays_spared(hostile: str, tmp_path: Path, tmux: str) -> None:
    pane = f"{hostile} --bare stay"
    with kept(["/bin/sh", "-c", f"{tmux} new-session -d '{pane}'; sleep 60"], tmp_path) as job:
        person = job.named("h-stay")[0]
        proof = job.proof()
        proof.read(scan())
        subprocess.run([*tmux.split(), "kill-server"], check=True)
        wait_until(lambda: (now := find(person.id.pid)) and now.ppid == job.keeper.pid)
        verdict = proof.read(scan())
        assert person.id.pid in {spared.process.id.pid for spared in verdict.spared}
        assert person.id.pid not in pids(verdict.ours)


def test_a_run_launched_inside_tmux_is_ours_all_the_same(hostile: str, tmp_path: Path) -> None:
    """Its keeper has inherited the variable, so that it says nothing; a pane of another server does."""
    inherited = {"TMUX": "/tmp/tmux-0/default,1,0"}
    script = f"{hostile} stay & TMUX=/tmp/other,2,0 {hostile} --bare stay & TMUX=/tmp/other,2,0 {hostile} breed & wait"
    with kept(["/bin/sh", "-c", script], tmp_path, env=inherited, keeper_env=inherited) as job:
        job.named("h-stay", 2), job.named("h-breed")
        verdict = wait_until(lambda: (seen := job.proof().read(scan())) and len(seen.spared) == 1 and seen)
        assert verdict.spared[0].process.argv[-1] == "breed" and "TMUX" in verdict.spared[0].why
        assert len(verdict.ours) == 3
    with kept([hostile, "stay"], tmp_path, env=inherited) as job:
        assert job.proof().ours(scan()) == []


def test_a_screen_server_is_known_by_its_argv(hostile: str, tmp_path: Path) -> None:
    with kept(["/bin/bash", "-c", f"(exec -a SCREEN {hostile} stay) & sleep 60"], tmp_path) as job:
        server = job.named("h-stay")[0]
        wait_until(lambda: (now := find(server.id.pid)) and now.argv[:1] == ("SCREEN",))
        assert server.id.pid not in pids(job.proof().ours(scan()))


def test_another_run_that_the_job_launched_is_spared(hostile: str, tmp_path: Path) -> None:
    archive = tmp_path / "0123456789abcdef.pyz"
    archive.write_text(
        "import subprocess, sys, time\n"
        f"if sys.argv[1] == 'keep': subprocess.Popen([{hostile!r}, '--bare', 'stay'], start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    keeper = f"env -u GPUCTL_RUN -u GPUCTL_DIR {sys.executable} -I {archive}"
    script = f"{keeper} keep & {keeper} supervise /x & GPUCTL_RUN=other-run-111111 {hostile} stay & sleep 60"
    with kept(["/bin/sh", "-c", script], tmp_path) as job:
        job.named("h-stay", 2)
        verdict = job.proof().read(scan())
        assert {process.comm for process in verdict.ours} == {"sh", "sleep"}
        why = " ".join(spared.why for spared in verdict.spared)
        assert len(verdict.spared) == 4
        assert "gpuctl's own" in why and "belongs to the run other-run-111111" in why


def test_an_older_attempts_keeper_below_a_supervisor_hides_nothing(hostile: str, tmp_path: Path) -> None:
    archive = tmp_path / "0123456789abcdef.pyz"
    archive.write_text(f"import subprocess, time; subprocess.Popen([{hostile!r}, 'stay']); time.sleep(60)\n")
    env = {**os.environ, **marker(RUN, tmp_path)}
    with started([sys.executable, "-I", str(archive), "keep"], env=env) as keeper:
        wait_until(lambda: [one for one in scan() if one.ppid == keeper.pid and one.comm.startswith("h-")])
        proof = Proof(RUN, str(tmp_path), [], [id_of(os.getpid())])  # we are its parent, as a supervisor would be
        assert {process.comm for process in proof.ours(scan())} == {"h-stay"}


@pytest.mark.skipif(os.geteuid() != 0, reason="making a PID namespace needs root")
def test_outside_our_pid_namespace_the_marker_proves_nothing(hostile: str, tmp_path: Path) -> None:
    inside = ["unshare", "--pid", "--fork", hostile, "breed"]
    env = {**os.environ, **marker(RUN, tmp_path)}
    with started(inside, env=env) as unshare:
        wait_until(lambda: [one for one in scan() if one.ppid == unshare.pid and one.comm.startswith("h-")])
        claim = Proof(RUN, str(tmp_path), [], [id_of(unshare.pid)])
        assert claim.ours(scan()) == []
    with kept(inside, tmp_path) as job:
        contained = job.named("h-breed")[0]
        assert contained.id.pid in pids(job.proof().ours(scan()))  # by descent it is ours wherever it lives
        never = Proof(RUN, str(tmp_path), [])
        assert contained.id.pid in pids(never.ours(scan()))  # below a marked process of ours too


def test_a_child_older_than_its_parent_is_none() -> None:
    def process(pid: int, start: int, ppid: int) -> Process:
        return Process(ProcessId(pid, start), ppid, "S", "x", 0, pid, 1, ("x",))

    reused = process(7, 500, 1)
    assert lineage([reused, process(8, 400, 7), process(9, 500, 7)]) == {reused.id: [process(9, 500, 7)]}
