"""A run from launch to its end: what is refused, what is shared, what is asked for, what is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.node.processes import ProcessId, alive, find, signal
from gpuctl.wire.runspec import OnOom, Relaunches, Stop
from tests.parts.node import TestNode, node
from tests.waiting import wait_until

HOLD = f"{sys.executable} -m gpuctl.simulation.hold"


def test_a_second_run_does_not_get_a_held_gpu(sim: TestNode) -> None:
    sim.start(sim.job("sleep 60", "first-1", gpus=2))
    sim.wait_state("loading", run="first-1")
    answer = sim.start(sim.job("sleep 60", "second-1", gpus=1))
    assert answer["error"]["code"] == 5
    assert "first-1" in answer["error"]["what"]
    assert "second-1" not in sim.ps()


def test_two_runs_that_share(sim: TestNode) -> None:
    for run in ("first-1", "second-1"):
        sim.start(sim.job("sleep 60", run, gpus=[0], share=True))
        sim.wait_state("loading", run=run)
    assert sim.start(sim.job("sleep 60", "third-1", gpus=[0]))["error"]["code"] == 5
    sim.ask("first-1", "kill")
    assert sim.life("second-1").state == "loading"
    assert sim.jobs_of("second-1")


def test_one_that_shares_waits_for_room_beside_others(sim: TestNode) -> None:
    sim.start(sim.job(f"{HOLD} --mib 70000", "first-1", gpus=[0], share=True))
    sim.wait_state("loading", run="first-1")
    wait_until(lambda: "holding" in sim.log("first-1"))
    keys = {"gpus": [0], "share": True, "params": {"mib": 60000}, "on_failure": Relaunches(0, 0.05)}
    command = f'{sys.executable} -c "{TENSOR}" {{mib}}'
    sim.start(sim.job(command, "second-1", on_oom=OnOom(reduce=["mib"]), **keys))
    sim.start(sim.job(command, "hasty-1", on_oom=OnOom(reduce=["mib"]), on_busy_wait_s=0.2, **keys))
    life = sim.wait_over("hasty-1")
    assert (life.state, life.attempt) == ("blocked", 1)
    assert "no room" in (life.why or "") and "of 95.6 GiB of GPU 0" in (life.why or "")
    wait_until(lambda: [event for event in sim.events("second-1", "waiting") if "others hold" in event["why"]])
    assert len(sim.events("second-1", "attempt_started")) == 1, "it does not try again and again"
    sim.ask("first-1", "kill")
    assert sim.wait_over("second-1").state == "succeeded"
    assert [event["params"]["mib"] for event in sim.events("second-1", "attempt_started")] == [60000, 60000]


def test_a_queued_run_starts_in_its_turn(sim: TestNode) -> None:
    sim.start(sim.job("sleep 60", "first-1", gpus=2))
    sim.wait_state("loading", run="first-1")
    for run in ("second-1", "third-1"):
        assert sim.start(sim.job("sleep 60", run, gpus=2, queue=True))["run"]["state"] == "queued"
    wait_until(lambda: sim.ps()["third-1"]["queue_place"] == 2)
    sim.ask("first-1", "kill")
    sim.wait_state("loading", run="second-1")
    assert sim.life("third-1").state == "queued"
    sim.ask("third-1", "kill")
    assert sim.life("third-1").state == "killed"


def test_which_gpus_it_gets(sim: TestNode) -> None:
    sim.start(sim.job("printenv CUDA_VISIBLE_DEVICES", "one-1", gpus=[1]))
    sim.wait_over("one-1")
    assert sim.log("one-1") == "1\n"
    sim.start(sim.job("printenv CUDA_VISIBLE_DEVICES", "all-1", gpus="all"))
    sim.wait_over("all-1")
    assert sim.log("all-1") == "0,1\n"
    assert sim.start(sim.job("true", "three-1", gpus=3))["error"]["code"] == 2
    assert sim.start(sim.job("true", "ninth-1", gpus=[9]))["error"]["code"] == 2


def test_what_can_be_known_before_is_refused(sim: TestNode) -> None:
    missing = sim.job("true", gpus=0)
    answer = sim.start(type(missing).from_json({**missing.to_json(), "workdir": "/no/such/folder"}))
    assert "/no/such/folder" in answer["error"]["what"]
    assert sim.start(sim.job("no-such-program", gpus=0))["error"]["code"] == 2
    assert sim.ps() == {}


def test_a_job_without_gpus_needs_no_driver(tmp_path: Path) -> None:
    with node(tmp_path, simulate=None, devices=[str(tmp_path / "nothing*")]) as bare:
        bare.start(bare.job("echo fine", gpus=0))
        assert bare.wait_over().state == "succeeded"
        assert bare.start(bare.job("true", "gpu-1", gpus=1))["error"]["code"] == 4


TENSOR = "from gpuctl.simulation.cuda import Gpu; import sys; Gpu(0).allocate('x', int(sys.argv[1]) << 20)"


def test_it_gives_way_until_it_fits(sim: TestNode) -> None:
    command = f'{sys.executable} -c "{TENSOR}" {{mib}}'
    on_oom = OnOom(reduce=["mib"], factor=0.5, max_relaunches=6)
    sim.start(sim.job(command, gpus=1, params={"mib": 300000}, on_oom=on_oom))
    life = sim.wait_over()
    assert life.state == "succeeded", sim.log()
    tried = [event["params"]["mib"] for event in sim.events(type="attempt_started")]
    assert tried[0] == 300000
    assert tried[-1] <= 97887
    assert len(set(tried)) == len(tried)
    for exited in sim.events(type="relaunching"):
        before = [event["type"] for event in sim.events() if event["seq"] < exited["seq"]]
        assert before[::-1].index("gpus_empty") < before[::-1].index("attempt_started")


def test_kill_ends_everything_and_frees_the_gpus(sim: TestNode) -> None:
    sim.start(sim.job(f"{HOLD} --mib 5000 --seconds 600", gpus=1))
    wait_until(lambda: sim.call("gpus")[-1]["devices"][0]["device"]["memory_used_mib"])
    events = sim.ask("job-1", "kill", grace_s=2)
    assert events[-1]["type"] == "run_finished"
    assert sim.life().state == "killed"
    assert [event["type"] for event in sim.events()][-2] == "gpus_empty"
    assert sim.call("gpus")[-1]["devices"][0]["device"]["memory_used_mib"] == 0
    refused = sim.ask("job-1", "kill")[-1]
    assert "already ended" in refused["error"]["what"]


def test_what_ignores_the_stop_signal_is_killed_after_the_grace(sim: TestNode) -> None:
    command = "sh -c 'trap : TERM; echo deaf; while :; do sleep 0.1; done'"
    sim.start(sim.job(command, gpus=1, stop=Stop("TERM", 0.3)))
    wait_until(lambda: sim.life().attempt and sim.log() == "deaf\n")
    job = sim.jobs_of()[0]
    sim.ask("job-1", "kill")
    assert not alive(job)
    assert sim.events(type="attempt_exited")[-1]["signal"] == 9


def test_relaunch_of_a_living_run_with_other_values(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'echo value $1; sleep 600' x {n}", gpus=1, params={"n": 1}))
    sim.wait_state("loading")
    events = sim.ask("job-1", "relaunch", params={"n": 2}, grace_s=1)
    assert events[-1]["type"] == "attempt_started"
    assert events[-1]["params"] == {"n": 2}
    wait_until(lambda: sim.log(attempt=2) == "value 2\n")
    assert len(sim.jobs_of()) == 1


def test_relaunch_of_a_run_that_has_ended(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'exit {code}'", gpus=1, params={"code": 3}))
    assert sim.wait_over().state == "failed"
    sim.ask("job-1", "relaunch", params={"code": 0})
    wait_until(lambda: sim.life().state == "succeeded")
    assert sim.life().attempt == 2


def test_a_kill_wins_over_a_relaunch_that_is_under_way(sim: TestNode) -> None:
    command = "sh -c 'trap : TERM; echo deaf; while :; do sleep 0.1; done'"
    sim.start(sim.job(command, gpus=1, stop=Stop("TERM", 2)))
    wait_until(lambda: sim.life().attempt and sim.log() == "deaf\n")
    sim.ask("job-1", "relaunch", wait=False)
    sim.ask("job-1", "kill")
    assert sim.life().state == "killed"
    assert len(sim.events(type="attempt_started")) == 1


def test_a_relaunch_with_another_job_file_may_ask_for_other_gpus(sim: TestNode) -> None:
    def asking(gpus: int) -> dict[str, object]:
        return sim.job("sh -c 'printenv CUDA_VISIBLE_DEVICES; sleep 600'", gpus=gpus).to_json()

    sim.start(sim.job("sleep 600", gpus=1))
    sim.wait_state("loading")
    for attempt, (gpus, visible) in enumerate([(2, "0,1\n"), (0, "\n"), (1, "0\n")], 2):
        sim.ask("job-1", "relaunch", spec=asking(gpus), grace_s=1)
        wait_until(lambda attempt=attempt, visible=visible: sim.log(attempt=attempt) == visible)
        leased = [row["leases"] for row in sim.call("gpus")[-1]["devices"]]
        assert leased == [["job-1"]] * gpus + [[]] * (2 - gpus)


def test_a_relaunch_that_needs_a_secret_which_its_supervisor_lacks_ends_nothing(sim: TestNode) -> None:
    sim.start(sim.job("sleep 600", gpus=0))
    sim.wait_state("loading")
    spec = sim.job("sleep 600", gpus=0, secrets=["TOKEN"]).to_json()
    refused = sim.ask("job-1", "relaunch", spec=spec)[-1]["error"]
    assert "TOKEN" in refused["what"]
    assert sim.jobs_of()


def test_a_log_that_grows_faster_than_it_is_read_delays_no_kill(sim: TestNode) -> None:
    spec = sim.job("sh -c 'while :; do yes | head -c 1000000; sleep 0.02; done'", gpus=0, stop=Stop("TERM", 1))
    sim.start(type(spec).from_json({**spec.to_json(), "watch": {"done": "never to be seen"}}))
    wait_until(lambda: sim.life().attempt and len(sim.log()) > 5_000_000)
    events = sim.ask("job-1", "kill")
    assert events[-1]["type"] == "run_finished"
    assert sim.life().state == "killed"


def test_what_a_callback_leaves_running_is_no_part_of_the_job(sim: TestNode) -> None:
    pid = sim.folder / "pid"
    callback = {"when": ["failed"], "run": f"sleep 600 >/dev/null 2>&1 & echo $! > {pid}"}
    spec = sim.job("false", gpus=1)
    sim.start(type(spec).from_json({**spec.to_json(), "callback": callback}))
    sim.wait_over()
    wait_until(lambda: sim.events(type="callback"))
    left = find(int(pid.read_text()))
    assert left is not None
    sim.call("clean", dry_run=False)
    sim.ask("job-1", "relaunch")
    sim.wait_over()
    try:
        assert alive(left.id)
    finally:
        signal(left.id, 9)


def test_the_timeout_of_an_attempt(sim: TestNode) -> None:
    sim.start(sim.job("sleep 600", gpus=1, timeout_s=0.5, stop=Stop("TERM", 1)))
    assert sim.wait_over().state == "failed"
    assert sim.events(type="incident")[-1]["class"] == "timeout"


def test_a_command_that_went_to_the_background_is_a_failure(sim: TestNode) -> None:
    sim.start(sim.job(f"sh -c '{HOLD} --mib 1000 --seconds 600 & sleep 1.5'", gpus=1, stop=Stop("TERM", 1)))
    life = sim.wait_over()
    assert life.state == "failed"
    assert "background" in (life.why or "")
    assert sim.call("gpus")[-1]["devices"][0]["device"]["memory_used_mib"] == 0


def test_a_failing_setup_is_named_and_the_command_is_not_started(sim: TestNode) -> None:
    sim.start(sim.job("echo started", gpus=0, setup="true\nfalse"))
    life = sim.wait_over()
    assert life.state == "failed"
    assert sim.events(type="incident")[-1]["class"] == "code_error"
    assert "setup" in sim.events(type="incident")[-1]["advice"]
    assert sim.log() == ""
    sim.start(sim.job("false", "other-1", gpus=0, setup="true"))
    sim.wait_over("other-1")
    assert "setup" not in sim.events("other-1", "incident")[-1]["advice"]


def test_a_pattern_that_takes_for_ever_is_given_up(sim: TestNode) -> None:
    line = "a" * 40 + "!"
    spec = sim.job(f"sh -c 'echo {line}; echo {line}; exit 3'", gpus=0)
    sim.start(type(spec).from_json({**spec.to_json(), "watch": {"progress": "^(a+)+$"}}))
    assert sim.wait_over().state == "failed"
    assert sim.events(type="attempt_exited")[-1]["exit_code"] == 3
    assert "progress" in sim.events(type="note")[-1]["text"]


def test_secrets_reach_the_job_and_nothing_else(sim: TestNode) -> None:
    value = "hunter2-" + "x" * 8
    spec = sim.job("sh -c 'test \"$TOKEN\" = {expected} && echo same'", secrets=["TOKEN"], gpus=0)
    spec = type(spec).from_json({**spec.to_json(), "command": "sh -c 'echo ${#TOKEN}; sleep 600'"})
    sim.start(spec, secrets={"TOKEN": value})
    wait_until(lambda: sim.log() == f"{len(value)}\n")
    sim.kill_9("supervise")
    wait_until(lambda: sim.events(type="supervisor_started"))
    sim.ask("job-1", "relaunch", grace_s=1)
    wait_until(lambda: sim.log(attempt=2) == f"{len(value)}\n")
    for path in sim.state_dir.rglob("*"):
        if path.is_file() and path.suffix != ".pyz":
            assert value.encode() not in path.read_bytes(), path
    for process in (*sim.processes("supervise"), *sim.processes("keep")):
        assert value.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_own_processes_carry_no_marker(sim: TestNode) -> None:
    os.environ["GPUCTL_RUN"] = "a-launch-from-inside-a-job"
    try:
        sim.start(sim.job("sleep 60", gpus=1))
    finally:
        del os.environ["GPUCTL_RUN"]
    sim.wait_state("loading")

    def own() -> list[ProcessId]:
        return [process for verb in ("supervise", "keep", "sample") for process in sim.processes(verb)]

    wait_until(lambda: len(own()) == 3, what="the job's own program in the place of the keeper's fork")
    for process in own():
        assert b"GPUCTL_" not in Path(f"/proc/{process.pid}/environ").read_bytes()


def test_log_files_that_the_job_writes_itself_are_judged(sim: TestNode) -> None:
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "94.97 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 93.77 GiB memory in use."
    )
    command = "sh -c 'mkdir -p ranks; echo \"$1\" > ranks/rank3.log; [ {n} -lt 3 ]' x " + f"'{error}'"
    watch = {"logs": ["ranks/*.log"]}
    spec = sim.job(command, gpus=1, params={"n": 4}, on_oom=OnOom(reduce=["n"]))
    sim.start(type(spec).from_json({**spec.to_json(), "watch": watch}))
    assert sim.wait_over().state == "succeeded"
    incident = sim.events(type="incident")[0]
    assert incident["class"].startswith("gpu_oom")
    assert incident["evidence"][0]["source"] == "ranks/rank3.log"
    assert incident["requested_bytes"] == 2 * 2**30


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
def test_a_full_disk_ends_it_failed_and_the_journal_stays_readable(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)], check=True)
    try:
        with node(small) as full:
            full.start(full.job(f"sh -c 'sleep 0.3; dd if=/dev/zero of={small}/fill bs=64k; sleep 600'", gpus=1))
            life = full.wait_over()
            assert life.state == "failed"
            assert full.events(type="incident")[-1]["class"] == "disk_full"
            assert full.events()[-1]["type"] == "run_finished"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
def test_a_log_that_fills_the_disk_hides_neither_the_exit_nor_the_run(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)], check=True)
    try:
        with node(small) as full:
            full.start(full.job("sh -c 'yes | head -c 20000000; exit 3'", gpus=1))
            assert full.wait_over().state == "failed"
            assert full.events(type="attempt_exited")[-1]["exit_code"] is not None
            wait_until(lambda: not full.processes("keep"), what="the keeper's end")
            assert full.call("remove", runs=["job-1"])[-1]["removed"][0]["run"] == "job-1"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_job_that_removes_its_own_folder_ends_all_the_same(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'rm -rf \"$GPUCTL_DIR\"; exit 5'", gpus=1))
    assert sim.wait_over().state == "failed"
    assert sim.events(type="attempt_exited")[-1]["exit_code"] == 5
    wait_until(lambda: not sim.processes("keep"), what="the keeper's end")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_tmux_shows_the_log_and_its_death_changes_nothing(sim: TestNode) -> None:
    gate = sim.folder / "gate"
    command = f"sh -c 'echo visible in the pane; while [ ! -e {gate} ]; do sleep 0.1; done; echo end'"
    run = f"tmux{os.getpid()}-1"
    sim.start(sim.job(command, run, gpus=1, launcher="tmux"))
    tmux = ["tmux", "-L", "gpuctl"]

    def pane() -> str:
        done = subprocess.run(
            [*tmux, "capture-pane", "-p", "-t", f"={run}:"], capture_output=True, text=True, check=False
        )
        return done.stdout

    wait_until(lambda: "visible in the pane" in pane())
    subprocess.run([*tmux, "kill-session", "-t", f"={run}"], check=True)
    assert sim.jobs_of(run)
    gate.touch()
    assert sim.wait_over(run).state == "succeeded"
    assert sim.log(run).endswith("end\n")
