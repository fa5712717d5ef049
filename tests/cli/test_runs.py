"""Runs from launch to rm, by the commands alone, on real processes of this machine."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.parts.command import ARGV, Done, Gpuctl
from tests.waiting import wait_until

LONG = "echo begun; exec sleep 300"


def row(gpuctl: Gpuctl, run: str) -> dict[str, object]:
    (found,) = gpuctl("ps", run, "--json").json()
    return dict(found)


def begun(gpuctl: Gpuctl, run: str) -> None:
    wait_until(lambda: "begun" in gpuctl("tail", run, code=None).out, every_s=0.2, what=f"{run} begins")


def interrupted(process: subprocess.Popen[bytes]) -> Done:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return Done(process.returncode, out.decode(), err.decode())


def test_launch_wait_tail_events(gpuctl: Gpuctl) -> None:
    answer = gpuctl(
        "launch", "--on", "sim", "--gpus", "2", "--workdir", str(gpuctl.work), "--json", "--",
        "sh", "-c", 'printf "%s\\n" "$CUDA_VISIBLE_DEVICES"; printf "\\377\\000raw" >&2',
    ).json()  # fmt: skip
    assert set(answer) == {"run", "job", "node", "state", "attempt", "gpus", "params"}
    assert answer["node"] == "sim"
    assert answer["gpus"] == [0, 1]
    assert gpuctl("wait").out == f"{answer['run']}: succeeded: it exited with code 0\n"
    env = gpuctl.environment()
    log = subprocess.run([*ARGV, "tail"], capture_output=True, env=env, check=True).stdout
    assert log == b"0,1\n\xff\x00raw"
    events = gpuctl("events", "--json").lines()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "run_created"
    assert events[-1]["type"] == "run_finished"
    assert row(gpuctl, answer["run"])["state"] == "succeeded"


def test_a_run_is_named_by_id_prefix_job_or_not_at_all(gpuctl: Gpuctl) -> None:
    first = gpuctl.launch("echo one")
    second = gpuctl.launch("echo two")
    gpuctl("wait", first, second)
    assert gpuctl("tail", first).out == "one\n"
    assert gpuctl("tail", first[:-1]).out == "one\n"
    assert gpuctl("tail", "job").out == "two\n"  # its newest
    assert gpuctl("tail").out == "two\n"
    assert "begins several runs" in gpuctl("tail", "jo", code=2).err
    elsewhere = {"GPUCTL_HOME": str(gpuctl.folder / "another")}
    assert gpuctl("tail", first, env=elsewhere).out == "one\n"  # launched from elsewhere
    assert "none was launched from here" in gpuctl("tail", env=elsewhere, code=2).err


def test_wait_tells_of_failure(gpuctl: Gpuctl) -> None:
    good, bad = gpuctl.launch("true"), gpuctl.launch("exit 7")
    done = gpuctl("wait", good, bad, "--json", code=1)
    assert [(one["run"], one["state"]) for one in done.json()] == [(good, "succeeded"), (bad, "failed")]


def test_wait_gives_up(gpuctl: Gpuctl) -> None:
    run = gpuctl.launch(LONG)
    assert "has not ended" in gpuctl("wait", run, "--timeout", "0.2s", code=1).out
    gpuctl("kill", run)


def test_kill_never_guesses(gpuctl: Gpuctl) -> None:
    first, second = gpuctl.launch(LONG), gpuctl.launch(LONG)
    for words in (["kill"], ["kill", "job"], ["relaunch", "job"], ["rm", "job"]):
        error = gpuctl(*words, code=2).err
        assert first in error
        assert second in error
    assert "live" in gpuctl("rm", first, code=5).err
    gpuctl("kill", first)
    assert gpuctl("kill", "job", "--json").json()[0]["run"] == second  # one is left
    assert row(gpuctl, first)["state"] == "killed"
    assert "had ended already" in gpuctl("kill", first).out


def test_kill_empties_the_gpus(gpuctl: Gpuctl) -> None:
    run = gpuctl.launch(LONG, gpus=2)
    begun(gpuctl, run)
    (ending,) = gpuctl("kill", run, "--grace", "5s", "--json").json()
    assert ending["state"] == "killed"
    assert ending["gpus_empty"] is True


def test_relaunch_with_other_values_and_after_the_end(gpuctl: Gpuctl) -> None:
    gpuctl.job(
        f"name: count\nnode: sim\ngpus: 0\nworkdir: {gpuctl.work}\n"
        "params: {size: 8}\ncommand: echo size {size} attempt {attempt}\n"
    )
    run = gpuctl("launch", "job.yaml", "--set", "size=16", "--json").json()["run"]
    gpuctl("wait", run)
    assert gpuctl("relaunch", run, "--set", "size=4", "--json").json()["params"] == {"size": 4}
    gpuctl("wait", run)
    assert gpuctl("tail", run).out == "size 4 attempt 2\n"
    assert gpuctl("tail", run, "--attempt", "1").out == "size 16 attempt 1\n"
    assert gpuctl("tail", run, "-f", "--attempt", "1").out == "size 16 attempt 1\n"
    assert "no parameter 'sice'" in gpuctl("relaunch", run, "--set", "sice=4", code=2).err


def test_tail_follows_over_attempts_and_ctrl_c_leaves_the_run(gpuctl: Gpuctl) -> None:
    run = gpuctl.launch(LONG)
    following = gpuctl.start("tail", run, "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == b"begun\n"
    gpuctl("relaunch", run)
    assert following.stdout.readline() == b"begun\n"
    done = interrupted(following)
    assert done.code == 130
    assert f"gpuctl kill {run}" in done.err
    assert row(gpuctl, run)["attempt"] == 2
    gpuctl("kill", run)


def test_tail_lines_and_json(gpuctl: Gpuctl) -> None:
    run = gpuctl.launch("seq 1 100; printf '\\377'")
    gpuctl("wait", run)
    pieces = gpuctl("tail", run, "--json").lines()
    assert pieces[0]["offset"] == 0
    assert {"run", "attempt", "offset", "base64"} == set(pieces[0])
    run = gpuctl.launch("seq 1 100")
    gpuctl("wait", run)
    assert gpuctl("tail", run, "-n", "2").out == "99\n100\n"
    assert "".join(piece["text"] for piece in gpuctl("tail", "-n", "1", "--json").lines()) == "100\n"


def test_tail_of_a_file_that_the_job_writes(gpuctl: Gpuctl) -> None:
    run = gpuctl.launch("echo in a file > train.log")
    gpuctl("wait", run)
    assert gpuctl("tail", run, "--file", "train.log").out == "in a file\n"


def test_launch_follow_shows_the_log_and_exits_as_wait(gpuctl: Gpuctl) -> None:
    words = ["--on", "sim", "--gpus", "0", "--workdir", str(gpuctl.work), "--follow"]
    done = gpuctl("launch", *words, "--", "sh", "-c", "echo out; exit 3", code=1)
    run, *log = done.out.splitlines()
    assert log == ["out"]
    assert "run_finished" in done.err
    assert "failed" in done.err
    assert run.startswith("sh-")
    assert gpuctl("launch", *words, "--", "true").code == 0


def test_ctrl_c_in_follow_leaves_the_run(gpuctl: Gpuctl) -> None:
    process = gpuctl.start(
        "launch", "--on", "sim", "--gpus", "0", "--workdir", str(gpuctl.work), "--follow", "--", "sh", "-c", LONG
    )
    assert process.stdout is not None
    run = process.stdout.readline().decode().strip()
    assert process.stdout.readline() == b"begun\n"
    done = interrupted(process)
    assert done.code == 130
    assert f"gpuctl kill {run}" in done.err
    assert row(gpuctl, run)["state"] in ("loading", "running")
    gpuctl("kill", run)


@pytest.mark.parametrize("after_s", [0.2, 0.4, 0.6, 0.9])
def test_ctrl_c_in_launch_says_what_became_of_it(after_s: float, gpuctl: Gpuctl) -> None:
    process = gpuctl.start(
        "launch", "--on", "sim", "--gpus", "0", "--workdir", str(gpuctl.work), "--", "sh", "-c", LONG
    )
    try:
        out, err = process.communicate(timeout=after_s)  # the moment of the key press: anywhere in its work
    except subprocess.TimeoutExpired:
        done = interrupted(process)
    else:
        done = Done(process.returncode, out.decode(), err.decode())
    runs = [one["run"] for one in gpuctl("ps", "--json").json()]
    if done.code == 130 and "was started" in done.err and "nothing was started" not in done.err:
        assert runs == [done.out.strip()]
    elif done.code == 130:
        assert "interrupted" in done.err
        assert runs == []
    elif done.code == 0:
        assert runs == [done.out.strip()]
    else:  # Python itself had not begun to read our code yet
        assert "gpuctl" not in done.err
        assert runs == []
    for run in runs:
        gpuctl("kill", run)


def test_dry_run_prints_a_job_file_that_gives_the_same(gpuctl: Gpuctl) -> None:
    words = ["--reduce", "batch-size", "--workdir", str(gpuctl.work), "--name", "dry"]
    printed = gpuctl(
        "launch", "--on", "sim", "--gpus", "0", "--dry-run", *words, "--", "echo", "it's {x} $HOME", "--batch-size=64"
    )
    gpuctl.job(printed.out)
    run = gpuctl("launch", "job.yaml", "--json").json()["run"]
    gpuctl("wait", run)
    assert gpuctl("tail", run).out == "it's {x} $HOME --batch-size=64\n"
    assert len(gpuctl("ps", "-a", "--json").json()) == 1


def test_the_first_node_with_enough_free_gpus(gpuctl: Gpuctl) -> None:
    text = gpuctl.inventory.read_text()
    gpuctl.inventory.write_text(
        f"{text}  sim2: {{transport: local, state_dir: {gpuctl.folder}/state2, simulate: {{gpus: 4}}}}\n"
    )
    words = ["--workdir", str(gpuctl.work), "--json"]

    def launch(*more: str, code: int = 0) -> Done:
        return gpuctl("launch", "--on", "sim,sim2", "--gpus", "3", *words, *more, "--", "sh", "-c", LONG, code=code)

    first, second = launch().json(), launch().json()
    assert (first["node"], second["node"]) == ("sim", "sim2")
    assert "--queue" in launch(code=5).err
    queued = launch("--queue").json()
    assert queued["state"] == "queued"
    gpuctl("kill", queued["run"], first["run"], second["run"])


def test_rm_and_prune(gpuctl: Gpuctl) -> None:
    first, second = gpuctl.launch("true"), gpuctl.launch("true")
    gpuctl("wait", first, second)
    assert gpuctl("rm", first, "--dry-run", "--json").json()[0]["removed"][0]["run"] == first
    assert (gpuctl.folder / "state" / "runs" / first).is_dir()
    gpuctl("rm", first)
    assert not (gpuctl.folder / "state" / "runs" / first).exists()
    gpuctl("prune", "sim", "--older-than", "0s", "--json")
    assert gpuctl("ps", "-a", "--json").json() == []


def test_cp_there_and_back(gpuctl: Gpuctl, tmp_path: Path) -> None:
    source = gpuctl.work / "a folder"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "ü 1").write_bytes(b"\x00\xff" * 100_000)
    gpuctl("cp", "a folder", f"sim:{tmp_path}/there")
    run = gpuctl.launch("cp -r there/sub sub2", "--workdir", str(tmp_path))
    gpuctl("wait", run)
    gpuctl("cp", f"{run}:sub2", "back")
    assert (gpuctl.work / "back" / "ü 1").read_bytes() == b"\x00\xff" * 100_000
    assert "no such file" in gpuctl("cp", "nowhere", "sim:x", code=2).err
    gpuctl("cp", f"sim:{tmp_path}/nowhere", ".", code=3)


def test_explain_a_run_and_logs_in_order(gpuctl: Gpuctl) -> None:
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. "
        "GPU 3 has a total capacity of 79.10 GiB of which 512.00 MiB is free."
    )
    (gpuctl.work / "oom.log").write_text(f"step 1/10\nTraceback (most recent call last):\n{oom}\n")
    (gpuctl.work / "good.log").write_text("step 1/2\nstep 2/2\ndone\n")
    first, second, third = gpuctl("explain", "--json", "good.log", "oom.log", "-", stdin=f"{oom}\n".encode()).lines()
    assert (first["file"], first["class"]) == ("good.log", None)
    assert (second["file"], second["class"], second["gpu"], second["requested_bytes"]) == (
        "oom.log",
        "gpu_oom",
        3,
        1 << 30,
    )
    assert third["file"] == "-"
    run = gpuctl.launch("cat oom.log; exit 1")
    gpuctl("wait", run, code=1)
    (told,) = gpuctl("explain", "--json").lines()
    assert told["run"] == run
    assert told["class"] == "gpu_oom"


def test_attach_on_a_terminal(gpuctl: Gpuctl) -> None:
    assert "needs a terminal" in gpuctl("attach", "x", code=2).err
    gpuctl.job(
        f"name: view\nnode: sim\ngpus: 0\nlauncher: tmux\nworkdir: {gpuctl.work}\ncommand: 'echo begun; sleep 300'\n"
    )
    run = gpuctl("launch", "job.yaml", "--json").json()["run"]
    begun(gpuctl, run)
    screen = gpuctl.on_terminal("attach", run)
    screen.shows(b"begun")
    screen.press(b"\x03")
    screen.shows(f"gpuctl kill {run}".encode())
    assert screen.end() == 130
    assert row(gpuctl, run)["state"] in ("loading", "running")
    gpuctl("kill", run)


def test_a_log_on_a_terminal_is_shown_without_control_characters(gpuctl: Gpuctl) -> None:
    run = gpuctl.launch("printf '\\033]0;title\\007\\033[31mred\\033[0m\\n'")
    gpuctl("wait", run)
    screen = gpuctl.on_terminal("tail", run)
    assert screen.end() == 0
    assert screen.shown == b"red\r\n"


def test_secrets_that_are_missing_are_all_named(gpuctl: Gpuctl) -> None:
    gpuctl.job(
        f"name: s\nnode: sim\ngpus: 0\nworkdir: {gpuctl.work}\n"
        "command: 'echo ${#TOKEN_A}'\nsecrets: [TOKEN_A, TOKEN_B]\n"
    )
    error = gpuctl("launch", "job.yaml", code=2).err
    assert "TOKEN_A, TOKEN_B" in error
    run = gpuctl("launch", "job.yaml", "--json", env={"TOKEN_A": "four", "TOKEN_B": "x"}).json()["run"]
    gpuctl("wait", run)
    assert gpuctl("tail", run).out == "4\n"
    assert "TOKEN_A" in gpuctl("relaunch", run, code=1).err  # nothing has them any more, and this shell neither
    gpuctl("relaunch", run, env={"TOKEN_A": "seven77", "TOKEN_B": "x"})
    gpuctl("wait", run)
    assert gpuctl("tail", run).out == "7\n"
    assert "four" not in json.dumps(gpuctl("events", "--json").lines())
