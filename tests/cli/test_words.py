"""What is decided and said without a node: whose run is meant, what an event says, what a node's facts come to."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuctl.cli import sentences
from gpuctl.cli.checkup import findings
from gpuctl.cli.explain import last_failure
from gpuctl.errors import GpuctlError, NotFound, Unreachable, UsageError
from gpuctl.fleet.runs import Found, Listing, choose
from gpuctl.spec.inventory import Node
from gpuctl.watchdog.advice import advise
from gpuctl.wire.incidents import Evidence, Incident
from gpuctl.wire.replies import RunRow

NODE = Node(name="n", transport="local")


def found(run: str, state: str) -> Found:
    return Found(run, NODE, RunRow(run=run, job=run.rpartition("-")[0], node="n", state=state))


OLDER, NEWER, OTHER = (
    found("train-aaaaaa", "succeeded"),
    found("train-bbbbbb", "running"),
    found("train-eval-cccccc", "running"),
)


def test_choose_by_id_job_and_prefix() -> None:
    listing = Listing([OLDER, NEWER, OTHER])
    assert choose("train-aaaaaa", listing, sure=True) == OLDER
    assert choose("train", listing, sure=True) == NEWER  # a job's name comes before a prefix
    assert choose("train-e", listing, sure=True) == OTHER
    with pytest.raises(UsageError, match="begins several runs"):
        choose("tr", listing, sure=False)


def test_a_jobs_newest_run_is_meant_but_never_one_of_several_live_ones() -> None:
    two = Listing([found("train-aaaaaa", "running"), NEWER])
    assert choose("train", two, sure=False) == NEWER
    with pytest.raises(UsageError, match="2 live runs: train-aaaaaa"):
        choose("train", two, sure=True)
    ended = Listing([NEWER, found("train-zzzzzz", "failed")])
    assert choose("train", ended, sure=True) == NEWER  # the live one, though an ended one is newer


def test_no_guess_while_a_node_is_silent() -> None:
    """It may have a newer run of the job, or another one of that prefix."""
    listing = Listing([OLDER, OTHER], [GpuctlError("n: no route", "look at it")])
    for word in ("train", "train-e"):
        assert choose(word, listing, sure=False)
        with pytest.raises(Unreachable, match="can't be told while a node is silent: n: no route"):
            choose(word, listing, sure=True)
    assert choose(OLDER.run, listing, sure=True) == OLDER


def test_absent_is_known_only_where_all_nodes_answered() -> None:
    with pytest.raises(NotFound) as none:
        choose("trian-aaaaaa", Listing([OLDER]), sure=False)
    assert "train-aaaaaa" in none.value.hint
    with pytest.raises(Unreachable):
        choose("x", Listing([OLDER], [Unreachable("n: no route")]), sure=False)


@pytest.mark.parametrize(
    ("indices", "shown"), [([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([6, 0, 1, 3], "0-1,3,6"), (None, "")]
)
def test_gpus(indices: list[int] | None, shown: str) -> None:
    assert sentences.gpus(indices) == shown


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        ({"type": "run_created", "by": "ada@here", "state": "queued"}, "launched by ada@here; it waits for its turn"),
        ({"type": "attempt_started", "pid": 7, "gpus": [0, 1], "params": {"b": 4}}, "pid 7 on GPUs 0-1, with b=4"),
        ({"type": "supervisor_started", "pid": 9}, "pid 9 goes on where the supervisor before it was lost"),
        (
            {"type": "request", "kind": "kill", "by": "ada@here", "grace_s": 10.0, "accepted": True, "params": {}},
            "ada@here asks to end it, with a grace of 10.0 s",
        ),
        (
            {"type": "request", "kind": "relaunch", "by": None, "accepted": False, "params": {"b": 2}, "why": "no"},
            "somebody asks for the next attempt with b=2; refused: no",
        ),
        (
            {"type": "attempt_exited", "exit_code": None, "signal": None, "duration_s": None},
            "ended, nobody knows how, after an unknown time",
        ),
        (
            {"type": "attempt_exited", "exit_code": None, "signal": 9, "duration_s": 75.2},
            "ended by SIGKILL (9) after 1 min 15 s",
        ),
        ({"type": "attempt_exited", "exit_code": 3, "signal": None, "duration_s": 2}, "exited with code 3 after 2.0 s"),
        ({"type": "progress", "done": 3.0, "total": 56.0}, "3/56"),
        (
            {"type": "incident", "class": "gpu_oom", "gpu": 0, "requested_bytes": 896 << 20, "free_bytes": 0},
            "gpu_oom on GPU 0: asked for 896.00 MiB, 0 bytes was free",
        ),
        (
            {"type": "incident", "class": "low_power", "gpu": None, "fatal": False, "advice": "It draws 20 %."},
            "low_power, but it goes on: It draws 20 %.",
        ),
        (
            {"type": "killed", "pid": 8, "name": "python", "signal": "KILL", "why": "its grace is over"},
            "python (pid 8) got KILL: its grace is over",
        ),
        ({"type": "cleaning", "gpus": [0, 1]}, "ends what is left of it on GPUs 0-1"),
        ({"type": "spared", "pid": 8, "name": "Xorg", "why": "protected"}, "Xorg (pid 8) is left alone: protected"),
        ({"type": "not_empty", "failure": "held_outside", "why": "30 MiB"}, "held outside: 30 MiB"),
        ({"type": "waiting", "why": "GPU 0 is held", "queue": 2}, "GPU 0 is held; number 2 in the queue"),
        ({"type": "xid", "xid": 79, "gpu": 3, "source": "NVML", "text": "x"}, "Xid 79 on GPU 3, told by NVML: x"),
        ({"type": "recovered", "class": "stalled", "why": "it prints again"}, "stalled no more: it prints again"),
        ({"type": "callback", "state": "failed", "exit_code": 0}, "the callback for failed ended with exit code 0"),
        ({"type": "of_a_newer_version", "fact": 1}, "fact 1"),
    ],
)
def test_what_an_event_says(event: dict[str, Any], sentence: str) -> None:
    assert sentences.sentence(event) == sentence


def test_every_event_that_a_node_writes_has_a_sentence() -> None:
    node = Path(sentences.__file__).parent.parent / "node"
    written = re.findall(r"\.write\(\s*\"([a-z_]+)\"", "".join(path.read_text() for path in node.glob("*.py")))
    assert len(written) > 30
    assert sorted(set(written) - set(sentences._TELL)) == []


def test_numbers_are_said_once() -> None:
    evidence = Evidence(
        "gpu_oom", "…", gpu=0, requested_bytes=896 << 20, free_bytes=81 << 20, total_bytes=95 << 30,
        allocated_bytes=94 << 30, reserved_bytes=78 << 20,
    )  # fmt: skip
    found = Incident("gpu_oom", True, "train", [evidence], 0, 896 << 20, 95 << 30, 81 << 20)
    event = {"type": "incident", **replace(found, advice=advise(found)).to_event()}
    assert sentences.sentence(event) == (
        "gpu_oom on GPU 0: asked for 896.00 MiB, 81.00 MiB was free of 95.00 GiB (94.0 GiB allocated by this process, "
        "78.0 MiB reserved but unused). A smaller batch or sequence should fit."
    )


@pytest.mark.parametrize("type", sorted(sentences._TELL))
def test_an_event_that_is_not_as_it_should_be_shows_its_facts(type: str) -> None:
    keys = ("gpus", "gpu", "params", "code", "evidence", "requested_bytes", "duration_s", "after_s", "done", "archived")
    for value in (7, "x", ["x"], {"x": {}}, -0.5, True, [None], [[1], 2]):
        event = {"type": type, "why": value, **dict.fromkeys(keys, value)}
        assert isinstance(sentences.event_line({**event, "time": "soon", "attempt": 1}), str)


def test_the_last_failed_attempt() -> None:
    events: list[dict[str, Any]] = [
        {"type": "attempt_started", "attempt": 1},
        {"type": "incident", "attempt": 1, "class": "gpu_oom", "fatal": True},
        {"type": "attempt_exited", "attempt": 1, "exit_code": 1},
        {"type": "attempt_started", "attempt": 2},
        {"type": "attempt_exited", "attempt": 2, "exit_code": 0},
    ]
    assert last_failure(events) == (1, events[1])
    assert last_failure(events[3:]) == (2, None)
    assert last_failure([]) == (None, None)


def test_a_node_with_troubles_gets_a_cure_for_each() -> None:
    facts = {
        "time": "2026-01-01T00:10:00Z",
        "python": {"version": "3.8.1", "path": "/usr/bin/python3"},
        "user": {"name": "ada", "uid": 1000},
        "tools": {"tmux": None, "fuser": None, "bash": "/bin/bash"},
        "gpus": {"error": "driver not loaded", "devices": [], "files": {"/dev/nvidia0": True}},
        "state_dir": {"path": "/home/ada/.gpuctl", "free_bytes": 1 << 20, "free_inodes": None},
        "lock_dir": {"path": "/run/lock/gpuctl", "usable": False, "used": "/tmp/gpuctl-run-lock-gpuctl"},
        "shm": {"total_bytes": 64 << 20},
        "kernel": {"log": False, "oom_counters": []},
        "limits": {"open_files": 1024},
        "systemd": True,
        "lingering": False,
    }
    told = findings(NODE, facts, now=datetime(2026, 1, 1, tzinfo=UTC))
    bad = [finding for finding in told if finding.verdict != "ok"]
    assert all(finding.cure for finding in bad)
    text = "\n".join(finding.what for finding in bad)
    for part in (
        "clock",
        "driver not loaded",
        "no tmux",
        "no fuser",
        "only 1.00 MiB",
        "leases",
        "OOM kills",
        "1024 open files",
        "logs out",
    ):
        assert part in text
    assert "loginctl enable-linger ada" in [finding.cure for finding in bad]


def test_a_lock_dir_that_launches_are_refused_for_fails() -> None:
    lock = {"path": "/l", "usable": False, "used": None, "why": "/l is closed to us", "cure": "chmod 1777 /l"}
    (told,) = [finding for finding in findings(NODE, {"lock_dir": lock}) if "leased" in finding.what]
    assert told.verdict == "fail"
    assert "/l is closed to us" in told.what and "chmod 1777 /l" in told.cure


def test_an_absent_fact_is_no_trouble() -> None:
    assert {finding.verdict for finding in findings(NODE, {"tools": {"tmux": "t", "fuser": "f", "bash": "b"}})} == {
        "ok",
        "warn",
    }
