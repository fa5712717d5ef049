"""Every command with --json: what it prints is what the contract promises, on stdout alone, with its exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpuctl.wire.names import ENDED, FailureClass
from tests.e2e.site import HOLD, Site
from tests.parts.leftovers import end_all
from tests.waiting import wait_until

PS = {"run", "job", "node", "state", "attempt", "params", "gpus", "created", "ended", "progress", "incident", "by"}
LAUNCH = {"run", "job", "node", "state", "attempt", "gpus", "params"}
EXPLAIN = {
    "file", "verdict", "class", "fatal", "phase", "gpu", "requested_bytes", "total_bytes", "free_bytes",
    "relaunch_reduced", "evidence", "advice",
}  # fmt: skip
UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.97 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 93.77 GiB memory in use."
)


class Ended:
    """Three runs that have ended, each its own way, for all tests that only ask."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.good = site.run_of("echo fine; echo last", name="good")
        self.bad = site.run_of("echo oops >&2; exit 3", name="bad")
        self.oom = site.run_of(f"echo '{OOM}'; exit 1", name="oom", gpus="1")
        for run in (self.good, self.bad, self.oom):
            site.await_end(run)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("ended")
    yield Ended(Site(folder))
    end_all(folder)


def test_launch(site: Site) -> None:
    done = site.sh("sleep 60", gpus="2", name="held")
    answer = done.json()
    assert set(answer) >= LAUNCH
    assert re.fullmatch(r"held-[a-z0-9]+", answer["run"])
    assert (answer["job"], answer["node"], answer["gpus"], answer["params"]) == ("held", "sim", [0, 1], {})
    assert answer["state"] in ("starting", "loading", "running")
    assert done.err == ""


def test_ps(ended: Ended) -> None:
    rows = {row["run"]: row for row in ended.site("ps", "--json").json()}
    assert list(rows) == [ended.good, ended.bad, ended.oom], "oldest first"
    for row in rows.values():
        assert set(row) >= PS
        assert UTC.fullmatch(row["created"]) and UTC.fullmatch(row["ended"])
        assert datetime.fromisoformat(row["created"]) <= datetime.fromisoformat(row["ended"])
        assert re.fullmatch(r".+@.+", row["by"])
    assert [row["state"] for row in rows.values()] == ["succeeded", "failed", "failed"]
    assert rows[ended.good]["progress"] is None and rows[ended.good]["incident"] is None
    assert rows[ended.oom]["incident"]["class"] == "gpu_oom"
    assert [row["run"] for row in ended.site("ps", "bad", "--json").json()] == [ended.bad]
    assert ended.site("ps", "--node", "sim").out.splitlines()[0].split()[:2] == ["RUN", "STATE"]


def test_tail(ended: Ended) -> None:
    assert ended.site("tail", ended.good).out == "fine\nlast\n"
    assert ended.site("tail", ended.good, "-n", "1").out == "last\n"
    assert ended.site("tail", ended.good, "-f").out == "fine\nlast\n", "of an ended run it ends"
    pieces = ended.site("tail", ended.good, "--json").lines()
    assert "".join(piece["text"] for piece in pieces) == "fine\nlast\n"
    assert ended.site("tail", ended.good, "--attempt", "7", code=3).out == ""


def test_events(ended: Ended) -> None:
    lines = ended.site("events", ended.oom, "--json").lines()
    assert lines == ended.site.journal(ended.oom)
    assert [event["seq"] for event in lines] == list(range(1, len(lines) + 1))
    for event in lines:
        assert UTC.fullmatch(event["time"]) and isinstance(event["mono_s"], float)
    of_type = {event["type"]: event for event in lines}
    assert of_type["attempt_started"]["pid"] and of_type["attempt_started"]["gpus"] == [0]
    assert of_type["incident"]["requested_bytes"] == 2 << 30
    assert of_type["attempt_exited"]["exit_code"] == 1 and of_type["attempt_exited"]["signal"] is None
    assert of_type["run_finished"]["state"] == "failed"
    assert "gpu_oom" in ended.site("events", ended.oom).out


def test_wait(ended: Ended, site: Site) -> None:
    told = ended.site("wait", ended.good, ended.bad, "--json", code=1).json()
    assert [(one["run"], one["state"]) for one in told] == [(ended.good, "succeeded"), (ended.bad, "failed")]
    ended.site("wait", ended.good)
    run = site.run_of("sleep 60")
    assert site("wait", run, "--timeout", "0.1s", "--json", code=1).json()[0]["state"] is None
    assert site.row(run)["state"] not in ENDED, "the run goes on"


def test_explain(ended: Ended, tmp_path: Path) -> None:
    answer = ended.site("explain", ended.oom, "--json").json()
    assert set(answer) >= EXPLAIN
    assert (answer["class"], answer["fatal"], answer["gpu"]) == ("gpu_oom", True, 0)
    assert answer["evidence"][0]["text"].startswith("torch.OutOfMemoryError")
    assert answer["advice"]
    log, calm = tmp_path / "x.log", tmp_path / "y.log"
    log.write_text(f"loading\n{OOM}\n")
    calm.write_text("step 1/2\nstep 2/2\n")
    logs = ended.site("explain", str(log), str(calm), "-", "--json", stdin=OOM.encode()).lines()
    assert [one["file"] for one in logs] == [str(log), str(calm), "-"]
    assert [one["class"] for one in logs] == ["gpu_oom", None, "gpu_oom"]
    assert set(logs[0]) >= EXPLAIN
    assert {one["class"] for one in logs} - {None} <= set(FailureClass.__args__)  # type: ignore[attr-defined]


def test_kill(site: Site) -> None:
    run = site.run_of(f"exec {HOLD} --mib 100", gpus="1")
    site.await_log(run, b"holding")
    (ending,) = site("kill", run, "--json").json()
    assert (ending["run"], ending["node"], ending["state"], ending["gpus_empty"]) == (run, "sim", "killed", True)
    assert isinstance(ending["after_s"], float)
    again = site("kill", run)
    assert "had ended already" in again.out


def test_relaunch(site: Site) -> None:
    site.job("name: j\nnode: sim\ngpus: 0\ncommand: sh -c 'echo n={n}; sleep {seconds}'\nparams: {n: 1, seconds: 60}\n")
    run = site("launch", "job.yaml", "--json").json()["run"]
    site.await_log(run, b"n=1")
    answer = site("relaunch", run, "--set", "n=2", "--json").json()
    assert set(answer) >= LAUNCH
    assert (answer["run"], answer["attempt"], answer["params"]["n"]) == (run, 2, 2)
    site.await_log(run, b"n=2", attempt=2)
    site("relaunch", run, "--set", "m=2", code=2)
    site("relaunch", run, "--set", "seconds=0")
    assert site.await_end(run)["state"] == "succeeded"
    site.job("name: j\nnode: sim\ngpus: 0\ncommand: echo new {n}\nparams: {n: 7}\n", "other.yaml")
    assert site("relaunch", run, "--job", "other.yaml", "--json").json()["params"] == {"n": 7}
    site.await_log(run, b"new 7", attempt=4)


def test_rm_and_prune(site: Site) -> None:
    live = site.run_of("sleep 60", name="live")
    gone, kept = (site.run_of("true", name=name) for name in ("gone", "kept"))
    site.await_end(gone), site.await_end(kept)
    assert site("rm", live, code=5).out == ""
    (dry,) = site("rm", gone, "--dry-run", "--json").json()
    assert (dry["dry_run"], [one["run"] for one in dry["removed"]]) == (True, [gone])
    assert site.run_folder(gone).exists()
    (report,) = site("rm", gone, "--json").json()
    assert [one["run"] for one in report["removed"]] == [gone]
    assert not site.run_folder(gone).exists()
    site("tail", gone, code=3)
    (report,) = site("prune", "sim", "--older-than", "30d", "--json").json()
    assert [one for one in report["removed"] if one.get("run")] == []
    (report,) = site("prune", "--older-than", "0s", "--json").json()
    assert [one["run"] for one in report["removed"] if one.get("run")] == [kept]
    assert [row["run"] for row in site("ps", "-a", "--json").json()] == [live]


def test_clean(site: Site) -> None:
    report = site("clean", "sim", "--json").json()
    assert report["node"] == "sim" and report["empty"] is True and report["killed"] == []
    assert set(report["memory_mib"].values()) == {0}
    assert site("clean", "sim", "--gpus", "0,1", "--dry-run", "--json").json()["dry_run"] is True


def test_gpus(site: Site) -> None:
    run = site.run_of(f"exec {HOLD} --mib 700", gpus="[3]")
    site.await_log(run, b"holding")
    rows = site("gpus", "--json").json()
    assert [row["index"] for row in rows] == list(range(8))
    held = rows[3]
    assert (held["memory_used_mib"], held["memory_total_mib"], held["leases"]) == (700, 97887, [run])
    assert [holder["ours"] for holder in held["holders"]] == [run]
    assert all(key in held for key in ("utilisation", "power_w", "power_limit_w", "temperature_c", "uuid"))
    with site.following("gpus", "sim", "--follow", "--json") as follower:
        wait_until(lambda: follower.out.count(b"\n") >= 16)
        follower.interrupt()
        follower.ended(130)
    assert json.loads(follower.out.splitlines()[11])["memory_used_mib"] == 700


def test_cp(site: Site) -> None:
    run = site.run_of("mkdir -p out && echo result > out/file")
    site.await_end(run)
    site("cp", f"{run}:out", str(site.folder / "fetched"), "--json")
    assert (site.folder / "fetched/file").read_text() == "result\n"
    (site.folder / "mine").write_bytes(bytes(range(256)))
    site("cp", str(site.folder / "mine"), f"sim:{site.folder}/theirs")
    assert (site.folder / "theirs").read_bytes() == bytes(range(256))
    assert site("cp", "sim:/no/such/file", str(site.folder / "x"), code=None).code in (1, 2, 3)
    site("cp", "a", "b", code=2)
    (site.folder / "empty").write_bytes(b"")
    assert "1 file, 0 bytes" in site("cp", str(site.folder / "empty"), f"sim:{site.folder}/none").err
    os.mkfifo(site.folder / "pipe")
    assert "neither a file nor a folder" in site("cp", str(site.folder / "pipe"), f"sim:{site.folder}/x", code=2).err
    two = [str(site.folder / "mine"), str(site.folder / "empty")]
    assert "make it first" in site("cp", *two, f"sim:{site.folder}/new", code=2).err
    by_prefix = site("cp", f"{run[:-2]}:out/file", str(site.folder / "again"))
    assert f"{run[:-2]}: is run {run} on sim" in by_prefix.err
    assert "is run" not in site("cp", f"{run}:out/file", str(site.folder / "again")).err


def test_the_rest_prints_documents(site: Site) -> None:
    nodes = site("nodes", "--json").json()
    assert nodes["inventory"] == str(site.inventory)
    reports = site("doctor", "sim", "--json").json()
    assert {check["verdict"] for check in reports[1]["checks"]} <= {"ok", "warn"}
    assert site("exec", "sim", "--json", "--", "echo", "a b").json()[0]["stdout"] == "a b\n"
    assert site("exec", "sim", "--", "sh", "-c", "exit 7", code=1).err.strip().endswith("exit code 7")
    late = site("exec", "sim", "--timeout", "1s", "--json", "--", "sh", "-c", "echo said; exec sleep 977", code=1)
    assert "did not end within 1 s" in late.err
    (outcome,) = late.json()
    assert (outcome["exit_code"], outcome["timed_out"], outcome["stdout"]) == (None, True, "said\n")
    for kind in ("job", "inventory"):
        assert site("schema", kind).json()["$schema"]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_data(word: str, site: Site) -> None:
    assert site("launch", word).err == ""


def facts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from facts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from facts(inner)


def test_sizes_are_integers_in_the_unit_that_their_name_says(ended: Ended) -> None:
    rows = ended.site("ps", "--json").json()
    incident = next(row["incident"] for row in rows if row["run"] == ended.oom)
    assert isinstance(incident["requested_bytes"], int)
    named = {key for row in ended.site("gpus", "--json").json() for key in facts(row)}
    assert {"memory_used_mib", "memory_total_mib", "power_w"} <= named
    for row in ended.site("gpus", "--json").json():
        assert all(isinstance(row[key], int) for key in row if key.endswith("_mib"))
