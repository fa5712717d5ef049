"""How often, how soon, and from where: counted over the attempts of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuctl.watchdog import budgets
from gpuctl.watchdog.policy import decide
from gpuctl.wire.incidents import AttemptRecord, Incident
from gpuctl.wire.names import FailureClass
from gpuctl.wire.runspec import Relaunches, RunSpec, Watch

SPEC = RunSpec("job-abc123", "job", "sim", "true", on_failure=Relaunches(3, 10.0))


def _attempt(number: int, cls: FailureClass = "nccl_timeout", **some: Any) -> AttemptRecord:
    return replace(AttemptRecord(number, {}, Incident(cls, True), duration_s=5.0), **some)


def _pause(*history: AttemptRecord, spec: RunSpec = SPEC) -> float:
    return budgets.pause_s(spec, Relaunches(9, 10.0), "nccl_timeout", history)


def test_pauses_double_with_early_failures_and_not_with_late_ones() -> None:
    early = [_attempt(number) for number in (1, 2, 3)]
    for count, least in ((1, 10.0), (2, 20.0), (3, 40.0)):
        assert least <= _pause(*early[:count]) <= least * 1.25
    late = _attempt(4, duration_s=1800.0)
    assert 10.0 <= _pause(*early, late) <= 12.5
    assert _pause(*[_attempt(number) for number in range(40)]) <= 3600 * 1.25


def test_jitter_spreads_runs_and_is_the_same_for_one() -> None:
    pauses = {_pause(_attempt(1), spec=replace(SPEC, run=f"job-{number}")) for number in range(50)}
    assert len(pauses) > 40
    assert _pause(_attempt(1)) == _pause(_attempt(1))


def test_a_service_that_ran_for_an_hour_begins_anew() -> None:
    spent = [_attempt(number) for number in (1, 2, 3, 4)]
    service = replace(SPEC, type="service")
    incident = spent[0].incident
    assert incident is not None
    assert decide(incident, service, {}, spent).kind == "stop"
    well = [*spent, _attempt(5, duration_s=4000.0, loading_s=100.0)]
    assert decide(incident, service, {}, well).kind == "relaunch"
    assert decide(incident, SPEC, {}, well).kind == "stop", "a task's budget is one"
    loading = [*spent, _attempt(5, duration_s=4000.0, loading_s=1200.0)]
    assert decide(incident, service, {}, loading).kind == "stop", "loading is not running"


@pytest.mark.parametrize("ready", [None, "Server is up"])
@pytest.mark.parametrize("before", [[], [{"loading_s": 100.0, "duration_s": 4000.0}]])
def test_a_service_that_never_becomes_ready_is_not_begun_for_ever(
    ready: str | None, before: list[dict[str, Any]]
) -> None:
    """Loading takes longer than the hour after which a service's budgets begin anew."""
    spec = replace(SPEC, type="service", on_failure=Relaunches(1, 0.0), watch=Watch(ready=ready))
    history = [_attempt(0, **keys) for keys in before]
    relaunched = 0
    while True:
        history.append(_attempt(len(history) + 1, duration_s=4200.0))
        incident = history[-1].incident
        assert incident is not None
        if decide(incident, spec, {}, history).kind == "stop":
            break
        relaunched += 1
        assert relaunched < 10
    assert relaunched <= budgets.MOST_IN_VAIN


@pytest.mark.parametrize(
    ("loading_s", "duration_s", "vain"),
    [(None, 9000.0, True), (1200.0, 1230.0, True), (1200.0, 1270.0, False), (5.0, 30.0, True), (5.0, None, False)],
)
def test_what_an_attempt_got_to_is_counted_from_when_it_was_ready(
    loading_s: float | None, duration_s: float | None, vain: bool
) -> None:
    record = _attempt(1, loading_s=loading_s, duration_s=duration_s)
    assert budgets.in_vain(record) is vain
    assert not budgets.in_vain(replace(record, progressed=True))


@pytest.mark.parametrize(
    ("loading_s", "duration_s", "blamed"),
    [(None, 300.0, True), (1200.0, 1230.0, True), (1200.0, 1270.0, False), (None, None, False)],
)
def test_a_checkpoint_that_takes_long_to_load_is_blamed_all_the_same(
    loading_s: float | None, duration_s: float | None, blamed: bool
) -> None:
    ready = _attempt(1, loading_s=1200.0, duration_s=9000.0, progressed=True)
    failed = _attempt(2, "code_error", resumed_from="a.pt", loading_s=loading_s, duration_s=duration_s)
    assert budgets.spoils_checkpoint(failed, [ready, failed]) is blamed
    assert (("a.pt", None) in budgets.spoiled([ready, failed])) is blamed


def test_attempts_in_vain_end_it_though_each_has_its_own_reason() -> None:
    classes: list[FailureClass] = ["nccl_timeout", "nccl_error", "port_in_use", "auth_or_download", "unknown"]
    history: list[AttemptRecord] = []
    kinds = []
    for number, cls in enumerate(classes, 1):
        history.append(_attempt(number, cls))
        incident = history[-1].incident
        assert incident is not None
        kinds.append(decide(incident, replace(SPEC, on_failure=Relaunches(1, 0.0)), {}, history).kind)
    assert kinds == ["relaunch", "relaunch", "relaunch", "stop", "stop"]
    progressed = [*history[:3], _attempt(4, "unknown", progressed=True)]
    assert budgets.in_a_row(progressed) == 0


def test_a_larger_budget_of_ones_own_is_spent() -> None:
    spec = replace(SPEC, policy={"nccl_timeout": Relaunches(6, 0.0)})
    incident = Incident("nccl_timeout", True)
    history = [_attempt(number) for number in range(1, 7)]
    assert decide(incident, spec, {}, history).kind == "relaunch"
    assert decide(incident, spec, {}, [*history, _attempt(7)]).kind == "stop"


@pytest.mark.parametrize(
    ("cls", "keys", "blamed"),
    [
        ("checkpoint_corrupt", {}, True),
        ("checkpoint_corrupt", {"duration_s": 900.0}, True),
        ("checkpoint_corrupt", {"progressed": True}, False),
        ("code_error", {}, True),
        ("code_error", {"duration_s": 900.0}, False),
        ("gpu_oom", {}, False),
        ("port_in_use", {}, False),
        ("code_error", {"resumed_from": None}, False),
    ],
)
def test_which_ends_speak_against_a_checkpoint(cls: FailureClass, keys: dict[str, Any], blamed: bool) -> None:
    record = replace(_attempt(1, cls, resumed_from="2.pt"), **keys)
    assert budgets.spoils_checkpoint(record, [record]) is blamed
    incident = record.incident
    assert incident is not None
    action = decide(incident, replace(SPEC, on_failure=Relaunches()), {}, [record], resumes=True)
    if cls in ("checkpoint_corrupt", "code_error"):
        assert (action.kind == "relaunch") is blamed


def test_checkpoints_are_given_up_a_few_times_only() -> None:
    history = [_attempt(n, "checkpoint_corrupt", resumed_from=f"{9 - n}.pt") for n in range(1, 5)]
    incident = Incident("checkpoint_corrupt", True)
    assert [decide(incident, SPEC, {}, history[:n], resumes=True).kind for n in (1, 2, 3, 4)] == [
        "relaunch", "relaunch", "relaunch", "stop",
    ]  # fmt: skip
    none_left = decide(incident, SPEC, {}, history[:1], resumes=False)
    assert (none_left.state, "none is left" in none_left.why) == ("failed", True)


def test_what_a_person_asks_for_forgives_all_but_plain_damage() -> None:
    history = [
        _attempt(1, "code_error", resumed_from="a.pt", resumed_written=1.0),
        _attempt(2, "checkpoint_corrupt", resumed_from="b.pt", resumed_written=2.0),
    ]
    assert budgets.spoiled(history) == {("a.pt", 1.0), ("b.pt", 2.0)}
    assert budgets.spoiled(history, anew=True) == {("b.pt", 2.0)}
    asked = [*history, _attempt(3, requested=True)]
    assert budgets.spoiled(asked) == {("b.pt", 2.0)}
