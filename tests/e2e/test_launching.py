"""What a launch is given and refused: GPUs, leases, the queue, names, values."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuctl.wire.names import ENDED
from tests.e2e.site import HOLD, Site
from tests.parts.gpus import holding
from tests.waiting import wait_until

ECHO_GPUS = 'echo "[$CUDA_VISIBLE_DEVICES]"'


def runs(site: Site) -> list[str]:
    return [row["run"] for row in site("ps", "-a", "--json").json()]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("workdir: /no/such/folder", 2, "/no/such/folder"),
        ("command: no-such-program --x", 2, "no-such-program"),
        ("command: CUDA_VISIBLE_DEVICES=1 true", 2, "gpus: [2, 3]"),
        ("env: {CUDA_VISIBLE_DEVICES: '1'}", 2, "gpus: [2, 3]"),
        ("command: nohup true", 2, "detaches"),
        ("command: sleep 9 &", 2, "detaches"),
        ("gpus: 9", 2, "9"),
        ("gpus: [3, 8]", 2, "8"),
        ("secrets: [NO_SUCH_A, NO_SUCH_B]", 2, "NO_SUCH_B"),
        ("command: echo {sped}\nparams: {speed: 1}", 2, "speed"),
        ("node: sin", 3, "sim"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_exists(line: str, code: int, said: str, site: Site) -> None:
    keys = {"name": "name: x", "node": "node: sim", "gpus": "gpus: 0", "command": "command: 'true'"}
    keys.update({part.partition(":")[0]: part for part in line.split("\n")})
    site.job("\n".join(keys.values()) + "\n")
    done = site("launch", "job.yaml", code=code)
    assert said in done.err
    assert done.out == ""
    assert runs(site) == []


def test_which_gpus_a_run_gets(site: Site) -> None:
    assert (site.sh("true", gpus="0").json()["gpus"], site.sh("true", gpus="0").json()["gpus"]) == ([], [])
    for gpus, seen in (("0", b"[]\n"), ("[6,7]", b"[6,7]\n"), ("2", b"[0,1]\n")):
        run = site.run_of(ECHO_GPUS, gpus=gpus)
        site.await_end(run)
        assert site.log(run) == seen
    run = site.run_of(ECHO_GPUS, gpus="all")
    site.await_end(run)
    assert site.log(run) == b"[0,1,2,3,4,5,6,7]\n"
    site("launch", "--on", "sim", "--gpus", "few", "--", "true", code=2)


def test_leases_exclude_and_share_shares(site: Site) -> None:
    first = site.run_of("sleep 60", gpus="7", name="first")
    refused = site.sh("sleep 60", gpus="2", name="second", code=5)
    assert first in refused.err
    assert "--queue" in refused.err
    assert site.sh("sleep 60", gpus="1", name="third").json()["gpus"] == [7], "one is free"
    site.sh("true", gpus="all", name="fourth", code=5)
    site("kill", "first", "third")
    site.job("name: shared\nnode: sim\ngpus: [0]\nshare: true\ncommand: sleep 60\n")
    for _ in range(2):
        site("launch", "job.yaml")
    assert "shared" in site.sh("true", gpus="[0]", code=5).err, "both must say so"
    assert len([row for row in site("ps", "shared", "--json").json() if row["state"] not in ENDED]) == 2


def test_memory_of_a_stranger_is_no_free_gpu(site: Site) -> None:
    site("gpus", "sim")
    (devices,) = site.state.rglob("dev/nvidiactl")
    with holding(str(devices.parent.parent), visible="0", options=["--mib", "300"]) as foreign:
        refused = site.sh("true", gpus="[0]", code=5)
        assert str(foreign.pid) in refused.err or "300 MiB" in refused.err
        assert site.sh("true", gpus="1").json()["gpus"] == [1], "the first that is free"
        assert foreign.poll() is None


def test_the_queue_is_in_turn(site: Site) -> None:
    first = site.run_of("sleep 60", gpus="8", name="first")
    second = site.sh(f"{ECHO_GPUS}; sleep 60", "--queue", gpus="8", name="second").json()
    third = site.sh("true", "--queue", gpus="1", name="third").json()
    assert [second["state"], third["state"], second["gpus"]] == ["queued", "queued", []]
    site("kill", first)
    site.await_log(second["run"], b"[0,1,2,3,4,5,6,7]")
    assert site.row(third["run"])["state"] == "queued"
    site("kill", "second")
    assert site.await_end(third["run"])["state"] == "succeeded"
    fourth = site.run_of("sleep 60", gpus="8", name="fourth")
    waiting = site.run_of("true", "--queue", gpus="8", name="fifth")
    site("kill", waiting)
    assert site.row(waiting)["state"] == "killed"
    assert site.row(fourth)["state"] not in ENDED


def test_names_never_guess_among_live_runs(site: Site) -> None:
    one, two = (site.run_of("sleep 60", name="twice") for _ in range(2))
    other = site.run_of("true", name="other")
    for verb in ("kill", "relaunch", "rm"):
        done = site(verb, "twice", code=2)
        assert one in done.err and two in done.err, verb
        asked = site(verb, code=2).err
        assert (other if verb == "rm" else one) in asked, "none named: those that it could be are listed"
    site("kill", one)
    site("kill", "twice")
    assert [row["state"] for row in site("ps", "twice", "--json").json()] == ["killed", "killed"]
    site.await_end(other)
    assert site("tail", two[:-1], code=None).code == 0, "a prefix that is unique"
    assert site("events", "oth").out
    assert one in site("tail", "twi", code=2).err, "it begins several"
    site("tail", "nobody", code=3)


def test_sets_are_scalars_of_yaml_1_2(site: Site) -> None:
    site.job(
        "name: sets\nnode: sim\ngpus: 0\nparams: {lr: 1e-4, flag: on, start: '', n: 1, ok: false}\n"
        "command: printf '%s|' {lr} {flag} {start} {n} {ok}\n"
    )
    words = ["lr=3e-5", "flag=no", "start=1:30:00", "n=0x10", "ok=true"]
    answer = site("launch", "job.yaml", "--json", *(word for value in words for word in ("--set", value))).json()
    assert answer["params"] == {"lr": 3e-5, "flag": "no", "start": "1:30:00", "n": 16, "ok": True}
    site.await_end(answer["run"])
    assert site.log(answer["run"]) == b"3e-5|no|1:30:00|16|true|"
    assert "flag" in site("launch", "job.yaml", "--set", "flga=1", code=2).err
    site("launch", "job.yaml", "--set", "n", code=2)


def test_reduce_on_the_command_line_gives_way(site: Site) -> None:
    script = (
        "import sys; from gpuctl.simulation.cuda import Gpu; print(sys.argv[1:]); "
        "Gpu(0).allocate('x', int(sys.argv[-1]) << 30)"
    )
    words = ["--on", "sim", "--gpus", "1", "--workdir", str(site.work), "--name", "adhoc", "--reduce", "batch-size"]
    argv = ["python3", "-c", script, "it's", "{x}", "--batch_size", "300"]
    run = site("launch", *words, "--json", "--", *argv).json()["run"]
    finished = site.await_end(run)
    assert finished["state"] == "succeeded", finished
    tried = [event["params"]["batch_size"] for event in site.journal(run, "attempt_started")]
    assert tried[0] == 300 and tried[-1] < 96
    assert len(set(tried)) == len(tried), "never the same values twice"
    assert b"[\"it's\", '{x}', '--batch_size', '300']" in site.log(run)
    assert site("launch", *words, "--", "python3", "--lr", "1", code=2).out == ""


def test_the_end_of_the_ladder_is_blocked_and_says_why(site: Site) -> None:
    script = "from gpuctl.simulation.cuda import Gpu; Gpu(0).allocate('x', 300 << 30)"
    site.job(
        f'name: never\nnode: sim\ngpus: 1\ncommand: python3 -c "{script}" {{n}}\n'
        "params: {n: 4}\non_oom: {reduce: n, floor: 2}\n"
    )
    run = site("launch", "job.yaml", "--json").json()["run"]
    assert site("wait", run, code=1).out
    row = site.row(run)
    assert row["state"] in ("blocked", "failed")
    assert row["why"]
    assert [event["params"]["n"] for event in site.journal(run, "attempt_started")] in ([4, 2], [4])


def test_launch_follow_exits_as_wait_does(site: Site) -> None:
    words = ["--on", "sim", "--gpus", "0", "--workdir", str(site.work), "--follow", "--", "sh", "-c"]
    done = site("launch", *words, "echo to stdout; exit 4", code=1)
    assert "to stdout\n" in done.out
    assert "failed" in done.err


def test_after_another_run(site: Site) -> None:
    gate = site.folder / "gate"
    first = site.run_of(f"while [ ! -e {gate} ]; do sleep 0.05; done", name="first", gpus="8")
    second = site.sh("true", "--after", "first", name="second", gpus="8").json()
    assert second["state"] == "queued"
    gate.touch()
    assert site.await_end(second["run"])["state"] == "succeeded"
    times = [site.journal(first, "run_finished")[0]["time"], site.journal(second["run"], "attempt_started")[0]["time"]]
    assert times == sorted(times)
    assert site.sh("true", "--after", first, name="third").json()["state"] != "queued", "it has succeeded already"
    site("launch", "--on", "sim", "--gpus", "0", "--after", "nobody", "--", "true", code=3)


def test_after_a_run_that_fails_is_blocked_until_asked_for(site: Site) -> None:
    first = site.run_of("sleep 60", name="first")
    second = site.run_of("true", "--after", first, name="second")
    third = site.run_of("true", "--after", first, name="third")
    assert "killed on request" in site("kill", third, "--json").json()[0]["why"]
    site("kill", first)
    finished = site.await_end(second)
    assert finished["state"] == "blocked"
    assert first in finished["why"] and f"gpuctl relaunch {second}" in finished["why"]
    site("relaunch", second)
    assert site.await_end(second)["state"] == "succeeded"


def test_a_queued_run_may_be_given_other_values(site: Site) -> None:
    first = site.run_of("sleep 60", gpus="8", name="first")
    site.job("name: later\nnode: sim\ngpus: 8\ncommand: echo n={n}\nparams: {n: 1}\n")
    run = site("launch", "job.yaml", "--queue", "--json").json()["run"]
    with site.following("relaunch", run, "--set", "n=2") as relaunch:
        site.await_event(run, "relaunching")
        assert site.journal(run, "attempt_started") == []
        site("kill", first)
        relaunch.ended()
    assert site.await_end(run)["state"] == "succeeded"
    assert site.log(run) == b"n=2\n"
    assert len(site.journal(run, "attempt_started")) == 1


def test_a_holder_between_attempts_blocks_and_the_run_says_whose(site: Site) -> None:
    """It never shrinks for memory that another process held."""
    site("gpus", "sim")
    (devices,) = site.state.rglob("dev/nvidiactl")
    site.job(
        f"name: busy\nnode: sim\ngpus: [0]\ncommand: sh -c '{HOLD} --mib 90000 --seconds {{s}}'\n"
        "params: {s: 60}\non_busy: {wait: 0.5s}\n"
    )
    run = site("launch", "job.yaml", "--json").json()["run"]
    site.await_log(run, b"holding")
    with holding(str(devices.parent.parent), visible="0", options=["--mib", "300"]) as foreign:
        done = site("relaunch", run, "--set", "s=1", code=1)
        assert f"{foreign.pid}" in done.err
        row = site.row(run)
        assert row["state"] == "blocked"
        assert f"{foreign.pid}" in row["why"]
        assert foreign.poll() is None
    site("relaunch", run, "--set", "s=0")
    wait_until(lambda: site.row(run)["state"] == "succeeded")


def test_a_home_that_the_shell_here_filled_in_is_explained(far: Site) -> None:
    words = ["launch", "--on", "gpu1", "--gpus", "0", "--workdir"]
    assert "keep your shell from filling in ~: '~/nope'" in far(*words, f"{Path.home()}/nope", "--", "true", code=2).err
    assert "~" not in far(*words, "/nope/nope", "--", "true", code=2).err
