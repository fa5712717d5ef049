"""What a job finds, in the shell that it runs in; and how an attempt's end becomes the run's."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest

from gpuctl.wire.names import ENDED
from tests.e2e.site import HOLD, Site
from tests.parts.words import HOSTILE_WORDS
from tests.waiting import wait_until


def launched(site: Site, text: str, *words: str, node: str = "sim", env: dict[str, str] | None = None) -> str:
    site.job(f"name: job\n{text}")
    return str(site("launch", "job.yaml", "--on", node, *words, "--json", env=env).json()["run"])


def ended(site: Site, text: str, **how: Any) -> tuple[str, dict[str, Any]]:
    run = launched(site, text, **how)
    return run, site.await_end(run)


@pytest.mark.parametrize("node", ["sim", "gpu1"])
@pytest.mark.parametrize("launcher", ["nohup", "tmux"])
def test_a_job_finds_the_same_however_it_was_reached(node: str, launcher: str, far: Site) -> None:
    if launcher == "tmux" and shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    text = f"gpus: [2, 3]\nlauncher: {launcher}\nworkdir: {far.work}\ncommand: env; pwd; cat; ulimit -c >/dev/null\n"
    run, finished = ended(far, text, node=node, env={"CALLERS_OWN": "x", "PYTHONPATH": "/callers"})
    assert finished["state"] == "succeeded"
    *lines, folder = far.log(run).decode().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    expected = {
        "GPUCTL_RUN": run, "GPUCTL_ATTEMPT": "1", "GPUCTL_DIR": f"{far.run_folder(run)}/attempts/1",
        "CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1", "SPT_NOENV": "1",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert folder == str(far.work)
    assert "CALLERS_OWN" not in found
    assert found.get("PYTHONPATH") != "/callers"
    assert not [name for name in found if name.startswith(("SSH_", "TMUX"))], "the same in each"
    assert found["HOME"] == os.path.expanduser("~")


def test_braces_and_env(site: Site) -> None:
    (site.work / "job in").mkdir()
    run, finished = ended(
        site,
        "gpus: 2\n"
        f"workdir: '{site.work}/{{job}} {{where}}'\n"
        'params: {where: in, text: "it\'s $HOME {run}", n: 3, rate: 3e-5, yes_: true}\n'
        "env: {ID: 'x-{run}-{n}', RAW: '{text}', JSON: '{\"a\": {\"b\": 1}}', SPT_NOENV: '0', SHELLVAR: '${HOME}'}\n"
        "command: >-\n"
        '  printf "%s|" {text} {n} {rate} {yes_} {{n}} ${HOME} \'{"a": 1}\' {a,b} "$ID" "$RAW" "$JSON" "$SPT_NOENV"\n'
        '  {run} {job} {attempt} {gpus} "$SHELLVAR"; test {port} -gt 1023; pwd\n',
    )
    assert finished["state"] == "succeeded", (finished, site.log(run))
    home = os.path.expanduser("~")
    expected = [
        "it's $HOME {run}", "3", "3e-5", "true", "{n}", home, '{"a": 1}', "a", "b", f"x-{run}-3", "it's $HOME {run}",
        '{"a": {"b": 1}}', "0", run, "job", "1", "2", "${HOME}",
    ]  # fmt: skip
    *found, folder = site.log(run).decode().split("|")
    assert found == expected
    assert folder == f"{site.work}/job in\n"


def test_argv_after_the_dashes_arrives_exactly(far: Site) -> None:
    words = [word for word in HOSTILE_WORDS if word.isprintable() or "\n" in word]
    script = "import sys; print(ascii(sys.argv[1:]))"
    argv = [
        "launch",
        "--on",
        "gpu1",
        "--gpus",
        "0",
        "--workdir",
        str(far.work),
        "--json",
        "--",
        "python3",
        "-c",
        script,
    ]
    run = far(*argv, *words).json()["run"]
    assert far.await_end(run)["state"] == "succeeded"
    assert far.log(run).decode() == f"{words!a}\n"


def test_secrets_reach_the_job_and_no_file(far: Site) -> None:
    text = f'gpus: 0\nworkdir: {far.work}\nsecrets: [TOKEN]\ncommand: printf %s "$TOKEN" | wc -c\n'
    run, finished = ended(far, text, node="gpu1", env={"TOKEN": "hunter2-hunter2"})
    assert finished["state"] == "succeeded"
    assert far.log(run).strip() == b"15"
    for path in (*far.folder.rglob("far/runs/**/*"), *far.folder.rglob("home/*")):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


def test_an_ended_run_gets_its_secrets_from_who_relaunches_it(far: Site) -> None:
    text = f'gpus: 0\nworkdir: {far.work}\nsecrets: [TOKEN]\ncommand: printf %s "$TOKEN" | wc -c\n'
    run, _finished = ended(far, text, node="gpu1", env={"TOKEN": "hunter2"})
    without = far("relaunch", run, code=1).err
    assert "TOKEN" in without and "blocked" in without
    far("relaunch", run, env={"TOKEN": "another"})
    assert far.await_end(run)["state"] == "succeeded"
    assert far.logs(run).split() == [b"7", b"7"]


def test_setup_is_before_the_command_in_the_same_shell(site: Site) -> None:
    run, finished = ended(site, 'gpus: 0\nsetup: |\n  export A=1\n  b=2\ncommand: echo "$A$b"\n')
    assert (finished["state"], site.log(run)) == ("succeeded", b"12\n")
    run, finished = ended(site, "gpus: 0\nsetup: cd /no/such/folder\ncommand: echo never\n")
    assert finished["state"] == "failed"
    assert site.journal(run, "incident")[-1]["class"] == "code_error"
    assert b"never" not in site.log(run)
    _run, finished = ended(site, "gpus: 0\ncommand: false | cat\n")
    assert finished["state"] == "failed", "pipefail"


def test_a_service_that_ends_by_itself_has_failed(site: Site) -> None:
    _run, finished = ended(site, "gpus: 0\ntype: service\ncommand: echo done\n")
    assert finished["state"] == "failed"


def test_a_command_that_went_to_the_background_is_a_failure_that_says_so(site: Site) -> None:
    command = f"sh -c '{HOLD} --mib 500 >&2 & while ! grep -q holding $GPUCTL_DIR/log; do sleep 0.05; done'"
    run, finished = ended(site, f"gpus: 1\ncommand: {command}\nstop: {{grace: 0.5s}}\n")
    assert finished["state"] == "failed"
    assert "background" in finished["why"]
    assert site.used_mib("sim") == 0
    assert site.journal(run, "gpus_empty")


def test_timeout_and_stop_signal(site: Site) -> None:
    command = "sh -c 'trap \"echo saved; exit 0\" USR1; echo ready; while :; do sleep 0.05; done'"
    run, finished = ended(site, f"gpus: 0\ncommand: {command}\ntimeout: 0.5s\nstop: {{signal: USR1, grace: 10s}}\n")
    assert finished["state"] == "failed"
    assert site.journal(run, "incident")[-1]["class"] == "timeout"
    assert site.log(run) == b"ready\nsaved\n", site.journal(run, "killed")


WAITS = "trap 'echo child saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("bash wait.sh", b"ready\nchild saved\n"),
        ("bash wait.sh; true", b"ready\nchild saved\n"),
        ("bash outer.sh", b"ready\nchild saved\n"),
        ("bash trap.sh", b"ready\nouter saved\n"),
    ],
)
def test_the_stop_signal_goes_to_the_job_not_to_a_shell_that_waits_for_it(script: str, said: bytes, site: Site) -> None:
    (site.work / "wait.sh").write_text(WAITS)
    (site.work / "outer.sh").write_text("bash wait.sh\ntrue\n")
    (site.work / "trap.sh").write_text("trap 'echo outer saved; exit 0' TERM; echo ready; sleep 600 & wait $!\n")
    run = launched(site, f"gpus: 0\nworkdir: {site.work}\ncommand: {script}\nstop: {{grace: 10s}}\n")
    site.await_log(run, b"ready")
    assert site("kill", run, "--json").json()[0]["state"] == "killed"
    assert [line for line in site.log(run).splitlines(True) if b"erminated" not in line] == said.splitlines(True)


def test_death_by_a_signal_is_told(site: Site) -> None:
    run, finished = ended(site, "gpus: 0\ncommand: sh -c 'kill -9 $$'\n")
    exited = site.journal(run, "attempt_exited")[-1]
    assert (finished["state"], exited["signal"], exited["exit_code"]) == ("failed", 9, None)


def test_a_caught_out_of_memory_is_no_failure(site: Site) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.20 GiB free."
    command = f"command: >-\n  echo '{line} retrying'; echo step 1/1 {{n}}\n"
    run, finished = ended(site, f"gpus: 1\nparams: {{n: 4}}\non_oom: {{reduce: n}}\n{command}")
    assert finished["state"] == "succeeded"
    assert len(site.journal(run, "attempt_started")) == 1


def test_observe_does_nothing(site: Site) -> None:
    script = "from gpuctl.simulation.cuda import Gpu; Gpu(0).allocate('x', 300 << 30)"
    run, finished = ended(
        site, f'gpus: 1\nobserve: true\nparams: {{n: 4}}\non_oom: {{reduce: n}}\ncommand: python3 -c "{script}" {{n}}\n'
    )
    assert finished["state"] == "failed"
    assert site.journal(run, "incident")[-1]["class"] == "gpu_oom"
    assert len(site.journal(run, "attempt_started")) == 1


def test_failures_that_a_second_try_may_cure(site: Site) -> None:
    marker = site.folder / "second"
    error = "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect"
    text = (
        f"gpus: 0\non_failure: {{relaunch: 1, backoff: 0s}}\n"
        f"command: \"test -e {marker} || {{ touch {marker}; echo '{error}' >&2; exit 1; }}\"\n"
    )
    run, finished = ended(site, text)
    assert finished["state"] == "succeeded", (finished, site.journal(run, "incident"))
    assert len(site.journal(run, "attempt_started")) == 2


def test_files_that_the_job_writes_itself_can_be_shown_and_count_as_output(site: Site) -> None:
    command = "sh -c 'echo own > train.log; echo of the attempt > $GPUCTL_DIR/rank0.log; sleep 60'"
    run = launched(site, f"gpus: 0\nworkdir: {site.work}\ncommand: {command}\nwatch: {{logs: [train.log]}}\n")
    wait_until((site.run_folder(run) / "attempts/1/rank0.log").exists)
    assert site("tail", run, "--file", "train.log").out == "own\n"
    wait_until(lambda: site("tail", run, "--file", "rank0.log").out == "of the attempt\n")
    site("tail", run, "--file", "no-such.log", code=3)


@pytest.mark.parametrize("whose", ["job", "node"])
def test_the_callback_is_told(whose: str, site: Site) -> None:
    heard = site.folder / "heard"
    callback = f"{{when: [failed, succeeded], run: 'echo \"$GPUCTL_RUN $GPUCTL_STATE $GPUCTL_WHY\" >> {heard}'}}"
    of_job = f"callback: {callback}\n" if whose == "job" else ""
    if whose == "node":
        text = site.inventory.read_text().replace("labels:", f"callback: {callback}, labels:")
        site.inventory.write_text(text)
    run = launched(site, f"gpus: 0\ncommand: sh -c 'exit 3'\n{of_job}")
    site.await_event(run, "callback")
    assert heard.read_text().startswith(f"{run} failed ")
    assert site.journal(run, "callback")[-1]["exit_code"] == 0


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("tmux") is None, reason="ends a tmux server of its own")
def test_the_end_of_the_tmux_server_loses_nothing(far: Site) -> None:
    gate = far.folder / "gate"
    command = f"sh -c 'echo first; while [ ! -e {gate} ]; do sleep 0.05; done; echo last; exit 3'"
    run = launched(far, f"gpus: 1\nlauncher: tmux\ncommand: {command}\n", node="gpu1")
    far.await_log(run, b"first")
    assert run in far("exec", "gpu1", "--", "tmux", "-L", "gpuctl", "ls").out
    far("exec", "gpu1", "--", "tmux", "-L", "gpuctl", "kill-server")
    assert far.row(run)["state"] not in ENDED
    gate.touch()
    assert far.await_end(run)["state"] == "failed"
    assert far.log(run) == b"first\nlast\n"
    assert far.journal(run, "attempt_exited")[-1]["exit_code"] == 3


def test_tail_follows_over_attempts_and_cut_connections(far: Site) -> None:
    """No line lost or repeated, whenever the connection is cut."""
    lines = 400
    loop = f"i=0; while [ $i -lt {lines} ]; do echo attempt {{attempt}} line $i; i=$((i+1)); sleep 0.002; done"
    command = f"sh -c '{loop}; [ {{attempt}} = 2 ] || sleep 600'"
    run = launched(far, f"gpus: 0\ncommand: {command}\n", node="gpu1")
    assert far.server is not None
    with far.following("tail", run, "-f") as copy, far.following("wait", run) as waiting:
        copy.await_out(b"attempt 1 line 5\n")
        far.server.cut()
        far.await_log(run, b"line 200\n")
        far("relaunch", run)
        far.server.cut()
        copy.await_out(b"attempt 2 line 50\n")
        far.server.cut()
        copy.ended()
        waiting.ended()
    assert copy.out == far.logs(run)
    second = [f"attempt 2 line {number}" for number in range(lines)]
    assert copy.out.decode().splitlines()[-lines:] == second
    assert "trying again" in copy.err


def test_a_frozen_supervisor_is_told_from_a_silent_machine(site: Site) -> None:
    run = site.run_of("echo begun; exec sleep 600")
    site.await_log(run, b"begun")
    (supervisor,) = site.processes("supervise", run)
    os.kill(supervisor.pid, signal.SIGSTOP)
    for words in (["kill", run], ["relaunch", run]):
        error = site(*words, code=4).err
        assert f"(pid {supervisor.pid}) is stopped" in error
        assert f"kill -CONT {supervisor.pid}" in error
        assert "nothing heard" not in error
    os.kill(supervisor.pid, signal.SIGCONT)
    assert site.await_end(run)["state"] == "killed", "what was asked for first is done"


def test_numbers_reach_the_command_as_they_were_written(site: Site) -> None:
    params = "params: {a: 1e3, b: 1000., c: 3e-5, d: 7, e: 2.50}"
    text = f"gpus: 0\n{params}\nenv: {{A: '{{a}}'}}\ncommand: echo {{a}} $A {{b}} {{c}} {{d}} {{e}}\n"
    run, _finished = ended(site, text)
    assert site.log(run) == b"1e3 1e3 1000. 3e-5 7 2.50\n"
    assert site.row(run)["params"] == {"a": 1000.0, "b": 1000.0, "c": 3e-5, "d": 7, "e": 2.5}
    site("relaunch", run, "--set", "a=2E3", "--set", "d=8")
    site.await_end(run)
    assert site.log(run, 2) == b"2E3 2E3 1000. 3e-5 8 2.50\n"
    site("relaunch", run, "--set", "a=2000")
    site.await_end(run)
    assert site.log(run, 3) == b"2000 2000 1000. 3e-5 8 2.50\n"
