from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node.folders import RunFolder, try_lock
from gpuctl.node.journal import Journal
from gpuctl.node.leases import Leases
from gpuctl.node.logs import last_lines
from gpuctl.node.machine import identity
from gpuctl.node.queries import Queries
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import Sample
from tests.records.conftest import NewRun
from tests.records.reader import Reading
from tests.waiting import wait_until

FINISHED = {"type": "run_finished", "state": "succeeded", "why": "done"}
STARTED = {"type": "attempt_started", "attempt": 1, "gpus": [0], "params": {"batch": 8}}


class Revived:
    """Stands for starting a supervisor: remembers for which runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def __call__(self, folder: RunFolder) -> None:
        self.runs.append(folder.run)
        Journal(folder.journal).append("run_finished", state="lost", why="the machine restarted")


@pytest.fixture
def revived() -> Revived:
    return Revived()


@pytest.fixture
def queries(node: NodeSpec, revived: Revived) -> Queries:
    return Queries(node, revived)


@pytest.fixture
def supervised(lock_fds: list[int]) -> Iterator[Any]:
    """Holds a run's lock, as its supervisor does."""

    def hold(folder: RunFolder) -> RunFolder:
        fd = try_lock(folder.lock)
        assert fd is not None
        lock_fds.append(fd)
        return folder

    yield hold


def ended(days_ago: float) -> dict[str, Any]:
    when = datetime.now(timezone.utc) - timedelta(days=days_ago)  # noqa: UP017  (these tests run on 3.8 too)
    return {**FINISHED, "time": when.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"}


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {row["run"]: row["state"] for row in answer["runs"]}


def write_log(folder: RunFolder, attempt: int, data: bytes) -> None:
    folder.attempt(attempt).create()
    with open(folder.attempt(attempt).log, "ab") as log:
        log.write(data)


def test_ps_of_a_node_that_never_ran_anything(queries: Queries) -> None:
    assert queries.ps()["runs"] == []


def test_ps_shows_live_runs_and_those_that_ended_lately(queries: Queries, new_run: NewRun, supervised: Any) -> None:
    supervised(new_run("live-1", STARTED))
    new_run("today-1", STARTED, ended(0.5))
    new_run("old-1", STARTED, ended(3))
    assert states(queries.ps()) == {"live-1": "loading", "today-1": "succeeded"}
    assert set(states(queries.ps(all=True))) == {"live-1", "today-1", "old-1"}
    assert states(queries.ps(runs=["old-1", "none-1"])) == {"old-1": "succeeded"}


def test_ps_orders_by_creation(queries: Queries, new_run: NewRun, supervised: Any) -> None:
    for hour, run in enumerate(("b-1", "a-1", "c-1")):
        supervised(new_run(run, created={"time": f"2026-01-01T0{hour}:00:00.000Z"}))
    assert list(states(queries.ps())) == ["b-1", "a-1", "c-1"]


def test_ps_starts_a_supervisor_for_a_live_run_that_has_none(
    queries: Queries, new_run: NewRun, supervised: Any, revived: Revived
) -> None:
    supervised(new_run("watched-1"))
    new_run("alone-1", STARTED)
    new_run("ended-1", FINISHED)
    assert states(queries.ps()) == {"watched-1": "starting", "alone-1": "lost", "ended-1": "succeeded"}
    assert revived.runs == ["alone-1"]


def test_a_run_of_another_machine_is_shown_and_left_alone(node: NodeSpec, new_run: NewRun, revived: Revived) -> None:
    new_run("there-1", STARTED)
    (row,) = Queries(node, revived, replace(identity(), host="elsewhere")).ps()["runs"]
    assert (row["machine"], row["state"], revived.runs) == (identity().host, "loading", [])


def test_a_broken_folder_hides_no_other_run(queries: Queries, new_run: NewRun, state: Any, supervised: Any) -> None:
    supervised(new_run("good-1"))
    os.makedirs(os.path.join(state.runs, "empty-1"))
    Path(new_run("bad-1").spec_file).write_text("{")
    assert set(states(queries.ps())) == {"good-1"}


def test_a_queued_run_has_a_place(queries: Queries, node: NodeSpec, new_run: NewRun, supervised: Any) -> None:
    supervised(new_run("first-1"))
    supervised(new_run("queued-1", created={"state": "queued"}))
    Leases(node).enqueue("queued-1", ["GPU-0"], 1, "2026")
    rows = {row["run"]: row["queue_place"] for row in queries.ps()["runs"]}
    assert rows == {"first-1": None, "queued-1": 1}


def test_events_are_the_journals_lines(queries: Queries, new_run: NewRun) -> None:
    new_run("a-1", STARTED, FINISHED)
    reading = Reading(partial(queries.events, run="a-1", after=1))
    assert [event["type"] for event in reading.join()] == ["attempt_started", "run_finished"]
    with pytest.raises(Refusal) as refusal:
        queries.events(None, "none-1")  # type: ignore[arg-type]
    assert refusal.value.code == 3


def test_events_are_followed_until_the_run_has_ended(queries: Queries, new_run: NewRun, supervised: Any) -> None:
    journal = Journal(supervised(new_run("a-1", STARTED)).journal)
    reading = Reading(partial(queries.events, run="a-1", follow=True))
    wait_until(lambda: len(reading.objects) == 2)
    journal.append("progress", 1, done=1, total=2)
    wait_until(lambda: len(reading.objects) == 3)
    journal.append(**FINISHED)
    assert [event["seq"] for event in reading.join()] == [1, 2, 3, 4]


def test_following_mends_a_run_that_lost_its_supervisor(
    queries: Queries, new_run: NewRun, revived: Revived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuctl.node.pursuit.LOOK_S", 0.1)
    folder = new_run("a-1", STARTED)
    supervisor = try_lock(folder.lock)
    assert supervisor is not None
    reading = Reading(partial(queries.events, run="a-1", follow=True))
    wait_until(lambda: len(reading.objects) == 2)
    assert revived.runs == []
    os.close(supervisor)
    assert reading.join()[-1]["state"] == "lost"
    assert revived.runs == ["a-1"]


def test_a_stream_of_named_runs_ends_with_the_last(queries: Queries, new_run: NewRun, supervised: Any) -> None:
    one, two = supervised(new_run("one-1", STARTED)), supervised(new_run("two-1", STARTED))
    reading = Reading(partial(queries.stream, runs=["one-1", "two-1"], after={"one-1": 2}))
    wait_until(lambda: len(reading.objects) == 2)
    Journal(one.journal).append(**FINISHED)
    wait_until(lambda: len(reading.objects) == 3)
    Journal(two.journal).append(**FINISHED)
    assert [(frame["run"], frame["event"]["seq"]) for frame in reading.join()] == [
        ("two-1", 1), ("two-1", 2), ("one-1", 3), ("two-1", 3),
    ]  # fmt: skip


def test_a_stream_of_all_has_what_comes_and_not_what_has_been(
    queries: Queries, new_run: NewRun, supervised: Any
) -> None:
    new_run("before-1", STARTED, FINISHED)
    supervised(new_run("live-1"))
    reading = Reading(queries.stream, keepalive_s=60)
    wait_until(lambda: len(reading.objects) == 1)
    supervised(new_run("new-1"))
    wait_until(lambda: len(reading.objects) == 2)
    assert [frame["run"] for frame in reading.objects] == ["live-1", "new-1"]
    reading.hang_up()
    wait_until(lambda: reading.closed)


def test_a_stream_with_samples(queries: Queries, new_run: NewRun, supervised: Any) -> None:
    supervised(new_run("live-1"))
    sample = partial(Sample, "2026-01-01T00:00:00.000Z", 1.0)
    reading = Reading(partial(queries.stream, sample=sample, every_s=0.05), keepalive_s=60)
    wait_until(lambda: sum("sample" in frame for frame in reading.objects) >= 3)
    reading.hang_up()
    wait_until(lambda: reading.closed)


def log(queries: Queries, run: str = "a-1", *, keepalive_s: float | None = None, **how: Any) -> Reading:
    return Reading(partial(queries.log, run=run, **how), keepalive_s=keepalive_s)


def test_the_log_byte_for_byte(queries: Queries, new_run: NewRun) -> None:
    data = bytes(range(256)) * 3000
    folder = new_run("a-1", STARTED, FINISHED)
    write_log(folder, 1, b"first")
    write_log(folder, 2, data)
    reading = log(queries)
    frames = reading.join()
    assert reading.text == data
    assert {header["attempt"] for header, _ in frames} == {2}
    at = 0
    for header, piece in frames:
        assert header["offset"] == at
        at += len(piece)
    for how, expected in ({"attempt": 1}, b"first"), ({"offset": len(data) - 3}, data[-3:]), ({"lines": 0}, b""):
        reading = log(queries, **how)
        reading.join()
        assert reading.text == expected


def test_what_is_not_there(queries: Queries, new_run: NewRun) -> None:
    folder = new_run("a-1", workdir="/nowhere")
    assert log(queries).join() == [], "no attempt yet: nothing to show"
    write_log(folder, 1, b"x")
    with pytest.raises(Refusal, match="no attempt 7"):
        log(queries, attempt=7).join()
    with pytest.raises(Refusal, match=r"/nowhere/train[.]log"):
        log(queries, file="train.log").join()


def test_a_file_that_the_job_writes_itself(queries: Queries, new_run: NewRun, tmp_path: Path) -> None:
    (tmp_path / "out8").mkdir()
    (tmp_path / "out8/train.log").write_bytes(b"in the workdir\n")
    folder = new_run("a-1", STARTED, FINISHED, workdir=f"{tmp_path}/out{{batch}}")
    write_log(folder, 1, b"x")
    reading = log(queries, file="train.log")
    reading.join()
    assert reading.text == b"in the workdir\n"
    Path(folder.attempt(1).path, "rank0.log").write_bytes(b"in GPUCTL_DIR\n")
    reading = log(queries, file="rank0.log")
    reading.join()
    assert reading.text == b"in GPUCTL_DIR\n"


def test_a_file_is_followed_from_when_the_job_makes_it(
    queries: Queries, new_run: NewRun, supervised: Any, tmp_path: Path
) -> None:
    folder = supervised(new_run("a-1", STARTED, workdir=str(tmp_path)))
    write_log(folder, 1, b"x")
    reading = log(queries, file="rank0.log", follow=True, keepalive_s=0.02)
    wait_until(lambda: (reading.beat(), reading.frames)[1], what="it waits")
    Path(folder.attempt(1).path, "rank0.log").write_bytes(b"in GPUCTL_DIR\n")
    wait_until(lambda: (reading.beat(), reading.text)[1] == b"in GPUCTL_DIR\n")
    reading.hang_up()
    wait_until(lambda: reading.closed)


def test_the_log_is_followed_over_attempts_and_ends_with_the_run(
    queries: Queries, new_run: NewRun, supervised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuctl.node.pursuit.LOOK_S", 1000.0)  # only a change wakes it
    folder = supervised(new_run("a-1", STARTED))
    reading = log(queries, follow=True)
    write_log(folder, 1, b"one\n")
    wait_until(lambda: reading.text == b"one\n")
    write_log(folder, 1, b"two\n")
    write_log(folder, 2, b"three\n")
    wait_until(lambda: reading.text == b"one\ntwo\nthree\n")
    write_log(folder, 2, b"more\n")
    wait_until(lambda: reading.text == b"one\ntwo\nthree\nmore\n")
    write_log(folder, 3, b"four\n")
    Journal(folder.journal).append(**FINISHED)
    reading.join()
    assert reading.text == b"one\ntwo\nthree\nmore\nfour\n"


def test_after_a_cut_it_goes_on_where_it_was(queries: Queries, new_run: NewRun) -> None:
    folder = new_run("a-1", STARTED, FINISHED)
    write_log(folder, 1, b"seen, not seen\n")
    write_log(folder, 2, b"next\n")
    reading = log(queries, attempt=1, offset=5, follow=True)
    reading.join()
    assert reading.text == b" not seen\nnext\n"


def test_one_attempt_is_followed_to_its_own_end(queries: Queries, new_run: NewRun, supervised: Any) -> None:
    folder = supervised(new_run("a-1", STARTED))
    write_log(folder, 1, b"one\n")
    reading = log(queries, attempt=1, follow=True)
    wait_until(lambda: reading.text == b"one\n")
    write_log(folder, 1, b"last\n")
    write_log(folder, 2, b"other\n")
    reading.join()
    assert reading.text == b"one\nlast\n"


@pytest.mark.parametrize(
    ("text", "count", "rest"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\n", 0, b""),
        (b"", 5, b""),
        (b"\n\n\n", 1, b"\n"),
        (b"x" * 600_000 + b"\nlast", 2, b"x" * 600_000 + b"\nlast"),
        (b"first\n" + b"x" * 600_000 + b"\n", 1, b"x" * 600_000 + b"\n"),
    ],
)
def test_last_lines(tmp_path: Path, text: bytes, count: int, rest: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(text)
    assert text[last_lines(str(path), count) :] == rest
