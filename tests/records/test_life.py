from __future__ import annotations

from typing import Any

import pytest

from gpuctl.wire.life import MOVES, fold, row
from gpuctl.wire.names import ENDED, State
from gpuctl.wire.runspec import RunSpec

SPEC = RunSpec("train-a1", "train", "gpu1", "true", params={"batch": 8}, by="me@laptop", launcher="tmux")


def events(*given: Any) -> list[dict[str, Any]]:
    """Types, or (type, fields); numbered and dated."""
    found = []
    for seq, each in enumerate(given, 1):
        type, fields = (each, {}) if isinstance(each, str) else each
        found.append(
            {"seq": seq, "time": f"2026-01-01T00:00:{seq:02}.000Z", "mono_s": float(seq), "type": type, **fields}
        )
    return found


FINISHED = ("run_finished", {"state": "succeeded", "why": "exit code 0"})


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ([], "starting"),
        (["run_created"], "starting"),
        ([("run_created", {"state": "queued"})], "queued"),
        ([("run_created", {"state": "queued"}), "waiting"], "queued"),
        ([("run_created", {"state": "queued"}), "attempt_started"], "loading"),
        (["run_created", "attempt_started"], "loading"),
        (["run_created", "attempt_started", "ready"], "running"),
        (["run_created", "attempt_started", "progress"], "running"),
        (["run_created", "attempt_started", "ready", "loading"], "running"),
        (["run_created", "cleaning", "attempt_started"], "loading"),
        (["run_created", "attempt_started", "progress", "incident", "cleaning"], "cleaning"),
        (["run_created", "attempt_started", "cleaning", "progress", "ready"], "cleaning"),
        (["run_created", "attempt_started", "cleaning", "killed", "gpus_empty", "relaunching"], "relaunching"),
        (["run_created", "attempt_started", "relaunching", "waiting"], "relaunching"),
        (["run_created", "attempt_started", "relaunching", "attempt_started"], "loading"),
        (["run_created", "attempt_started", FINISHED], "succeeded"),
        (["run_created", "attempt_started", FINISHED, "cleaning", "progress", "attempt_started"], "succeeded"),
        (["run_created", "attempt_started", FINISHED, ("run_finished", {"state": "lost"})], "succeeded"),
        (["run_created", "attempt_started", FINISHED, "relaunching"], "relaunching"),
        (["run_created", "a word of a newer version"], "starting"),
    ],
)
def test_states(given: list[Any], state: State) -> None:
    assert fold(events(*given)).state == state


def test_every_move_names_states_of_the_contract() -> None:
    known = {*ENDED, "queued", "starting", "loading", "running", "cleaning", "relaunching"}
    for sources, target in MOVES.values():
        assert sources <= known and target in known


def test_a_row_tells_what_ps_shows() -> None:
    told = events(
        ("run_created", {"by": "you@desk", "machine": {"host": "gpu1"}}),
        ("attempt_started", {"attempt": 1, "params": {"batch": 8}, "gpus": [0, 1]}),
        ("progress", {"attempt": 1, "done": 3, "total": 10}),
        ("incident", {"attempt": 1, "class": "gpu_oom", "gpu": 0, "fatal": True}),
        ("relaunching", {"params": {"batch": 4}, "why": "half of it"}),
    )
    shown = row(SPEC, told)
    assert (shown.run, shown.job, shown.node, shown.launcher, shown.by) == (
        "train-a1", "train", "gpu1", "tmux", "you@desk",
    )  # fmt: skip
    assert (shown.state, shown.attempt, shown.params, shown.gpus) == ("relaunching", 1, {"batch": 4}, [0, 1])
    assert shown.progress == {"done": 3, "total": 10}
    assert shown.incident == {"attempt": 1, "class": "gpu_oom", "gpu": 0, "fatal": True}
    assert (shown.created, shown.ended, shown.why) == (told[0]["time"], None, "half of it")
    assert shown.machine is None

    told += events(
        *["note"] * 5, ("attempt_started", {"attempt": 2, "params": {"batch": 4}, "gpus": [0, 1]}), FINISHED
    )[5:]
    shown = row(SPEC, told)
    assert (shown.state, shown.attempt, shown.why, shown.ended) == ("succeeded", 2, "exit code 0", told[-1]["time"])
    assert shown.progress is None, "an attempt begins without any"
    assert shown.incident is not None, "the last one is remembered"


def test_a_relaunch_of_an_ended_run_has_not_ended() -> None:
    life = fold(events("run_created", FINISHED, ("relaunching", {"why": "asked for"})))
    assert (life.over, life.ended, life.why) == (False, None, "asked for")


def test_before_the_first_event_the_spec_speaks() -> None:
    shown = row(SPEC, [])
    assert (shown.state, shown.params, shown.by, shown.created) == ("starting", {"batch": 8}, "me@laptop", None)


def test_a_run_of_another_host_is_shown_as_that_ones() -> None:
    told = events(("run_created", {"machine": {"host": "gpu2", "boot_id": "b"}}))
    assert row(SPEC, told, here="gpu1").machine == "gpu2"
    assert row(SPEC, told, here="gpu2").machine is None


def test_folding_goes_on_from_a_life() -> None:
    told = events("run_created", ("attempt_started", {"attempt": 1}), "progress", FINISHED)
    assert fold(told[2:], fold(told[:2])) == fold(told)
