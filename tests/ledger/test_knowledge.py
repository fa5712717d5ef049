"""What entries say of a launch: warned, refused, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuctl.watchdog.ledger import at_or_beyond, best_fitted, env_of, outlook, same, template_of, with_env
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.runspec import OnOom, RunSpec

CLEAN = {"commit": "abc", "dirty": False}
SPEC = RunSpec(
    "train-aaaaaa", "train", "sim", "python t.py --bs {bs} --seq {seq} --opt {opt}",
    params={"bs": 64, "seq": 2048, "opt": "adam"}, on_oom=OnOom(reduce=["bs"]),
)  # fmt: skip


def entry(bs: int, *, seq: int = 2048, opt: str = "adam", cls: str | None = "gpu_oom", **some: Any) -> LedgerEntry:
    base = LedgerEntry(
        f"train-{bs}", 1, "train", template_of(SPEC), "H200", 8, {"bs": bs, "seq": seq, "opt": opt},
        fitted=cls is None, cls=cls, code=CLEAN, env=env_of(SPEC, {}),
    )  # fmt: skip
    return replace(base, **some)


def test_nothing_known_says_nothing() -> None:
    assert outlook(SPEC, [], CLEAN).warnings == []
    assert outlook(SPEC, [entry(65), entry(1000)], CLEAN).refusal is None, "larger ones say nothing of smaller ones"


def test_the_same_command_and_code_is_refused() -> None:
    for failed in (entry(64), entry(32)):
        found = outlook(SPEC, [entry(16, cls=None, peak_mib=90112, total_mib=97280), failed], CLEAN)
        assert found.refusal and f"bs={failed.params['bs']}" in found.refusal
        assert "8 × H200" in found.refusal
        assert "--force" in found.hint and "bs=16 fitted with 88.0 of 95.0 GiB" in found.hint


def test_where_the_code_may_have_changed_it_only_warns() -> None:
    for code in (None, {"commit": "def", "dirty": False}, {"commit": "abc", "dirty": True}, {"commit": "abc"}):
        found = outlook(SPEC, [entry(64)], code)
        assert found.refusal is None
        assert len(found.warnings) == 1 and "bs=64 ran out of GPU memory" in found.warnings[0]
    assert outlook(SPEC, [entry(64, code={"commit": "abc", "dirty": None})], CLEAN).refusal is None


def test_in_another_environment_it_only_warns() -> None:
    """An allocator's setting, an attention's implementation: what env says can be why it fits now."""
    spec = replace(SPEC, env={"SEED": "{run}", "BATCH": "{bs}", "ATTENTION": "flash"})
    for env, refused in (
        (spec.env, True),
        ({"ATTENTION": "flash", "SEED": "{run}", "BATCH": "{bs}"}, True),
        ({**spec.env, "ATTENTION": "eager"}, False),
        ({**spec.env, "MORE": "1"}, False),
        ({}, False),
    ):
        before = replace(spec, env=env, run="train-bbbbbb")
        failed = entry(32, env=env_of(before, {"bs": 32}))
        found = outlook(spec, [failed], CLEAN)
        assert (found.refusal is not None) is refused, env
        assert refused or "bs=32 ran out" in found.warnings[0]
        assert (with_env([failed], spec) == [failed]) is refused
        assert with_env([replace(failed, cls=None, fitted=True)], spec), "what fitted stays worth a try"
    unknown = entry(32, env=None)
    assert outlook(spec, [unknown], CLEAN).refusal is None, "an entry of old"
    assert with_env([unknown], spec) == [unknown]


def test_other_values_count_only_where_they_need_no_less() -> None:
    assert outlook(SPEC, [entry(64, seq=4096)], CLEAN).warnings == []
    assert outlook(SPEC, [entry(64, opt="sgd")], CLEAN).warnings == []
    found = outlook(SPEC, [entry(64, seq=1024)], CLEAN)
    assert found.refusal is None and found.warnings, "another command, surely no smaller"


def test_a_later_success_disproves_a_failure() -> None:
    assert outlook(SPEC, [entry(64), entry(64, cls=None)], CLEAN).refusal is None
    assert outlook(SPEC, [entry(64, cls=None), entry(64)], CLEAN).refusal is not None


def test_what_failed_otherwise_is_no_failure_of_values() -> None:
    assert outlook(SPEC, [entry(64, cls="nccl_timeout"), entry(64, cls="code_error")], CLEAN).warnings == []


def test_accumulation_makes_up_and_does_not_count() -> None:
    kept = OnOom(reduce=["bs"], keep_product=["bs", "accum"])
    assert at_or_beyond({"bs": 64, "accum": 1}, {"bs": 32, "accum": 2}, kept)
    assert not at_or_beyond({"bs": 64, "accum": 1}, {"bs": 32, "accum": 2}, OnOom(reduce=["bs"]))
    assert not at_or_beyond({"bs": 64}, {"bs": 64, "more": 1}, kept)


def test_only_the_same_template_model_and_count() -> None:
    entries = [entry(1), entry(2, model="A100"), entry(4, count=4), entry(8, template="x")]
    assert same(entries, template_of(SPEC), "H200", 8) == entries[:1]
    assert template_of(SPEC) == template_of(replace(SPEC, run="train-bbbbbb", params={"bs": 1}))
    assert template_of(SPEC) != template_of(replace(SPEC, command="python t.py"))


def test_the_best_that_fitted() -> None:
    best = best_fitted(SPEC, [entry(4, cls=None), entry(16, cls=None), entry(64)])
    assert best is not None and best.params["bs"] == 16
    assert best_fitted(SPEC, [entry(64)]) is None
