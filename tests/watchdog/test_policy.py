"""From incidents to actions: whose memory, which setting, which value, how often, and when to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuctl.watchdog.policy import HARMFUL, decide, watch_of
from gpuctl.wire.incidents import Action, AttemptRecord, Evidence, Incident
from gpuctl.wire.names import FailureClass
from gpuctl.wire.runspec import Finding, OnOom, Relaunches, Resume, RunSpec, Watch

GIB = 1 << 30
SETTING = "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation"


def _spec(**some: Any) -> RunSpec:
    return replace(RunSpec("extract-abc123", "extract", "sim", "python x.py --bs {bs}", params={"bs": 64}), **some)


def _incident(cls: FailureClass = "gpu_oom", *, fatal: bool = True, **evidence: Any) -> Incident:
    return Incident(cls, fatal, evidence=[Evidence(cls, evidence.pop("text", "…"), **evidence)], gpu=0)


def _attempt(number: int, incident: Incident, bs: int = 64, **some: Any) -> AttemptRecord:
    return replace(AttemptRecord(number, {"bs": bs}, incident), **some)


def _decided(incident: Incident, spec: RunSpec, *history: AttemptRecord, bs: int = 64, resumes: bool = False) -> Action:
    past = list(history) or [_attempt(1, incident, bs)]
    return decide(incident, spec, {"bs": bs}, past, resumes=resumes)


GIVING = _spec(on_oom=OnOom(reduce=["bs"], max_relaunches=3))


def test_it_gives_way() -> None:
    action = _decided(_incident(), GIVING)
    assert (action.kind, action.params) == ("relaunch", {"bs": 32})
    assert "64 → 32" in action.why


def test_values_that_failed_are_not_tried_again() -> None:
    oom = _incident()
    action = _decided(oom, GIVING, _attempt(1, oom, 32), _attempt(2, oom, 64), bs=64)
    assert action.params == {"bs": 16}


def test_the_budget_ends_it_and_a_person_renews_it() -> None:
    oom = _incident()
    spent = [_attempt(number, oom, 64 >> number) for number in range(1, 5)]
    action = _decided(oom, GIVING, *spent, bs=4)
    assert (action.kind, action.state) == ("stop", "blocked")
    assert "max_relaunches" in action.why
    renewed = [*spent[:3], replace(spent[3], requested=True)]
    assert _decided(oom, GIVING, *renewed, bs=4).kind == "relaunch"


def test_nothing_left_is_blocked_with_the_reason() -> None:
    action = _decided(_incident(), _spec(on_oom=OnOom(reduce=["bs"], floor={"bs": 64})))
    assert (action.state, "floor" in action.why) == ("blocked", True)


def test_a_job_without_on_oom_fails() -> None:
    assert _decided(_incident(), _spec()).state == "failed"


def test_memory_of_another_process_changes_no_value() -> None:
    held = _incident(others=[{"pid": 9, "bytes": 70 * GIB}], in_use_bytes=GIB)
    action = _decided(held, GIVING)
    assert (action.kind, action.params) == ("relaunch", {"bs": 64})
    assert "9" in action.why
    oom = _incident()
    action = _decided(oom, GIVING, _attempt(1, oom, gpus_were_empty=False))
    assert action.params == {"bs": 64}


def test_what_failed_beside_foreign_memory_may_be_tried_again() -> None:
    held, oom = _incident(others=[{"pid": 9, "bytes": 70 * GIB}], in_use_bytes=GIB), _incident()
    assert _decided(oom, GIVING, _attempt(1, held, 32), _attempt(2, oom, 64)).params == {"bs": 32}


def test_who_shares_its_gpus_is_given_time() -> None:
    held = _incident(others=[{"pid": 9, "bytes": 70 * GIB}], in_use_bytes=GIB)
    spec = replace(GIVING, share=True, on_failure=Relaunches(0, 10.0))
    history: list[AttemptRecord] = []
    for number, least in ((1, 10.0), (2, 20.0), (3, 40.0)):
        history.append(_attempt(number, held, duration_s=2.0))
        action = _decided(held, spec, *history)
        assert (action.kind, action.params) == ("relaunch", {"bs": 64})
        assert least <= action.delay_s <= 1.25 * least
    assert _decided(held, GIVING).delay_s == 0.0, "empty is waited for anyway"


def test_fragmentation_asks_for_the_allocators_setting_first() -> None:
    torn = _incident("gpu_oom_fragmentation", text=SETTING)
    first = _decided(torn, GIVING)
    assert first.params == {"bs": 64}
    assert first.env == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    second = _decided(torn, GIVING, _attempt(1, torn), _attempt(2, torn))
    assert second.params == {"bs": 32}
    assert second.env == first.env, "it stays set"


def test_a_setting_of_the_job_is_its_own() -> None:
    torn = _incident("gpu_oom_fragmentation", text=SETTING)
    spec = replace(GIVING, env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    action = _decided(torn, spec)
    assert (action.params, action.env) == ({"bs": 32}, {})


def test_while_loading_only_what_loading_needs_gives_way() -> None:
    at_load = _incident("gpu_oom_at_load")
    assert _decided(at_load, GIVING).state == "blocked"
    spec = _spec(on_oom=OnOom(reduce=["other"], at_load=["bs"]))
    assert _decided(at_load, spec).params == {"bs": 32}


def test_a_share_that_is_not_free_is_no_question_of_length() -> None:
    text = "ValueError: Free memory on device (60.1/95.6 GiB) on startup is less than desired GPU memory utilization"
    refused = _incident("gpu_oom_at_load", text=text)
    action = _decided(refused, _spec(on_oom=OnOom(reduce=["bs"], at_load=["bs"])))
    assert action.state == "blocked"
    assert "gpu_memory_utilization" in action.why


def test_two_sizes_with_the_same_request_at_the_same_place() -> None:
    same = _incident(requested_bytes=3 * GIB, frame="x.py:3")
    action = _decided(same, GIVING, _attempt(1, same, 64), _attempt(2, same, 32), bs=32)
    assert (action.kind, action.state) == ("stop", "blocked")
    small = _incident(requested_bytes=20 << 20, frame="x.py:3")
    assert _decided(small, GIVING, _attempt(1, small, 64), _attempt(2, small, 32), bs=32).kind == "relaunch"


def test_late_with_nothing_to_resume_from() -> None:
    spec = _spec(on_oom=OnOom(reduce=["bs"], max_lost_s=3600.0))
    late = _attempt(1, _incident(), duration_s=9000.0, progressed=True)
    assert _decided(_incident(), spec, late).state == "blocked"
    resuming = _spec(
        on_oom=OnOom(reduce=["bs"], max_lost_s=3600.0, resume_changed=True), resume=Resume("*.pt", "--resume {latest}")
    )
    assert _decided(_incident(), resuming, late).state == "blocked", "no checkpoint was written yet"
    assert _decided(_incident(), resuming, late, resumes=True).kind == "relaunch"


def test_a_checkpoint_is_not_resumed_with_another_batch_unless_the_job_says_so() -> None:
    assert _decided(_incident(), GIVING, resumes=True).state == "blocked"
    fine = _spec(on_oom=OnOom(reduce=["bs"], resume_changed=True))
    assert _decided(_incident(), fine, resumes=True).kind == "relaunch"
    kept = _spec(on_oom=OnOom(reduce=["bs"], keep_product=["bs", "acc"]), params={"bs": 64, "acc": 1})
    action = decide(_incident(), kept, kept.params, [_attempt(1, _incident())], resumes=True)
    assert action.params == {"bs": 32, "acc": 2}, "a step is as large as before"


def test_a_second_try_within_its_budget_with_growing_pauses() -> None:
    lost = _incident("nccl_timeout")
    spec = _spec(on_failure=Relaunches(2, 30.0))
    first = _decided(lost, spec)
    assert (first.kind, first.params) == ("relaunch", {"bs": 64})
    assert 30.0 <= first.delay_s <= 37.5
    assert 60.0 <= _decided(lost, spec, _attempt(1, lost), _attempt(2, lost)).delay_s <= 75.0
    assert _decided(lost, spec, *(_attempt(n, lost) for n in (1, 2, 3))).state == "failed"
    assert _decided(lost, _spec()).state == "failed"


def test_what_a_second_try_can_not_cure() -> None:
    spec = _spec(on_failure=Relaunches(5, 0.0))
    for cls in ("code_error", "device_assert", "host_oom", "nan_loss", "timeout"):
        assert _decided(_incident(cls), spec).kind == "stop"  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", sorted(HARMFUL))
def test_where_a_relaunch_would_do_harm(cls: FailureClass) -> None:
    action = _decided(_incident(cls), _spec(on_failure=Relaunches(5, 0.0)))
    assert action.state == HARMFUL[cls][0]
    assert "gpuctl relaunch" in action.why, "it says what lifts it"


def test_the_jobs_own_word_stands_above_the_table() -> None:
    oom = _incident()
    assert _decided(oom, replace(GIVING, policy={"gpu_oom": "stop"})).kind == "stop"
    assert _decided(oom, replace(GIVING, policy={"gpu_oom": "alert"})).kind == "alert"
    stubborn = _spec(policy={"code_error": Relaunches(1, 5.0)})
    assert 5.0 <= _decided(_incident("code_error"), stubborn).delay_s <= 6.25


def test_a_finding_is_only_told() -> None:
    assert _decided(_incident("nan_loss", fatal=False), GIVING).kind == "alert"


# ── findings about a living attempt ─────────────────────────────────────────────────────────────────────────────────


def test_a_stalled_attempt_ends_as_watch_says() -> None:
    stalled = _incident("stalled")
    killed = _decided(stalled, _spec(watch=Watch(stall=Finding(60.0, "kill"))))
    assert (killed.kind, killed.state) == ("stop", "failed")
    again = _spec(watch=Watch(stall=Finding(60.0, "relaunch")))
    assert _decided(stalled, again).kind == "relaunch"
    assert _decided(stalled, again).params == {"bs": 64}, "unchanged"
    past = [_attempt(number, stalled, progressed=True) for number in range(1, 5)]
    assert _decided(stalled, again, *past).kind == "stop", "not for ever"
    once = replace(again, on_failure=Relaunches(1, 0.0))
    assert _decided(stalled, once, *past[:2]).kind == "stop", "on_failure is the budget where there is one"


@pytest.mark.parametrize(("own", "action"), [("alert", "alert"), ("stop", "kill"), (Relaunches(2, 1.0), "relaunch")])
def test_policy_stands_above_what_watch_says_of_findings(own: Any, action: str) -> None:
    spec = _spec(policy={"stalled": own, "low_power": own}, watch=Watch(stall=Finding(60.0, "relaunch")))
    watch = watch_of(spec)
    assert watch.stall is not None and watch.low_power is not None
    assert (watch.stall.for_s, watch.stall.action, watch.low_power.action) == (60.0, action, action)
    assert watch_of(_spec()) == Watch()


@pytest.mark.parametrize(
    ("incident", "why"),
    [
        (
            Incident("unknown", True, evidence=[Evidence("unknown", "ended by SIGKILL", source="exit")], advice="It…"),
            "unknown: ended by SIGKILL; nothing says",
        ),
        (
            Incident("code_error", True, evidence=[Evidence("code_error", "exit code 1 in `setup`", source="exit")]),
            "code_error: exit code 1 in `setup`; a second try would fail",
        ),
        (
            Incident("code_error", True, evidence=[Evidence("code_error", "ValueError: x " + "y" * 999)]),
            "code_error: ValueError: x yyy",
        ),
        (Incident("timeout", True, advice="It took longer than 5 s."), "timeout: It took longer than 5 s; "),
    ],
)
def test_what_happened_is_said_before_what_was_decided(incident: Incident, why: str) -> None:
    spec = RunSpec("r-1", "r", "n", "true")
    action = decide(incident, spec, {}, [AttemptRecord(1, {}, incident)])
    assert (action.kind, action.why.startswith(why), len(action.why) < 400) == ("stop", True, True), action.why
