"""The ladder ends, repeats nothing, and keeps its bounds, whatever the job file says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuctl.watchdog.ladder import Exhausted, Seen, Step, next_step, step_to
from gpuctl.watchdog.ledger import at_or_beyond
from gpuctl.wire.runspec import OnOom, Scalar


def _walk(on_oom: OnOom, params: dict[str, Scalar], loading_s: float | None = None) -> list[dict[str, Scalar]]:
    """Every combination, the first included, if each fails."""
    tried = [params]
    while len(tried) < 500:
        step = next_step(on_oom, tried[-1], Seen(tried, loading_s=loading_s))
        if isinstance(step, Exhausted):
            assert step.why
            return tried
        tried.append(step.params)
    raise AssertionError("it does not end")


def _values(on_oom: OnOom, params: dict[str, Scalar], name: str, loading_s: float | None = None) -> list[Scalar]:
    return [tried[name] for tried in _walk(on_oom, params, loading_s)]


def test_halves_down_to_the_floor() -> None:
    on_oom = OnOom(reduce=["bs"], floor={"bs": 3})
    assert _values(on_oom, {"bs": 50}, "bs") == [50, 25, 12, 6, 3]


def test_a_known_good_value_at_once_where_loading_is_dear() -> None:
    on_oom = OnOom(reduce=["bs"], known_good={"bs": 4})
    assert _values(on_oom, {"bs": 2000}, "bs")[:3] == [2000, 4, 2]
    assert _values(on_oom, {"bs": 2000}, "bs", loading_s=1300)[:2] == [2000, 4]


def test_between_good_and_bad_where_loading_is_cheap() -> None:
    on_oom = OnOom(reduce=["bs"], known_good={"bs": 4})
    assert _values(on_oom, {"bs": 2000}, "bs", loading_s=5)[:4] == [2000, 89, 18, 8]


def test_listed_values_in_their_order() -> None:
    on_oom = OnOom(reduce=["n"], values={"n": [32768, 24576, 16384]})
    assert _values(on_oom, {"n": 32768}, "n") == [32768, 24576, 16384]


def test_several_parameters_first_all_down_to_what_is_known_to_be_good() -> None:
    on_oom = OnOom(
        reduce=["block", "anchors"], known_good={"block": 16, "anchors": 512}, floor={"block": 8, "anchors": 256}
    )
    walked = [(tried["block"], tried["anchors"]) for tried in _walk(on_oom, {"block": 24, "anchors": 1024})]
    assert walked == [(24, 1024), (16, 1024), (16, 512), (8, 512), (8, 256)]


def test_the_product_is_kept() -> None:
    on_oom = OnOom(reduce=["bs"], keep_product=["bs", "accum"])
    walked = _walk(on_oom, {"bs": 48, "accum": 2, "lr": 0.1})
    assert all(int(tried["bs"]) * int(tried["accum"]) == 96 for tried in walked)
    assert [tried["bs"] for tried in walked] == [48, 24, 12, 6, 3, 1]


def test_what_was_seen_to_fit_is_good_only_with_the_rest_as_it_is() -> None:
    on_oom = OnOom(reduce=["bs"])
    seen = Seen(fitted=[{"bs": 40, "seq": 512}, {"bs": 30, "seq": 1024}])
    step = next_step(on_oom, {"bs": 100, "seq": 1024}, seen)
    assert isinstance(step, Step)
    assert step.params == {"bs": 30, "seq": 1024}


def test_the_end_says_why() -> None:
    for params, word in (
        ({"bs": 1}, "floor"),
        ({"bs": "many"}, "no number"),
        ({"bs": True}, "no number"),
        ({}, "no number"),
    ):
        step = next_step(OnOom(reduce=["bs"]), params, Seen())
        assert isinstance(step, Exhausted)
        assert word in step.why
    step = next_step(OnOom(), {"bs": 8}, Seen())
    assert isinstance(step, Exhausted)
    assert "on_oom" in step.why


_NUMBERS = st.integers(1, 5000)


@st.composite
def _jobs(draw: st.DrawFn) -> tuple[OnOom, dict[str, Scalar]]:
    names = draw(st.sampled_from([["a"], ["a", "b"], ["b", "a"]]))
    params: dict[str, Scalar] = {"a": draw(_NUMBERS), "b": draw(st.one_of(_NUMBERS, st.floats(0.01, 100))), "c": "x"}
    some: dict[str, Any] = {}
    if draw(st.booleans()):
        some["known_good"] = {name: draw(_NUMBERS) for name in names}
    if draw(st.booleans()):
        some["floor"] = {"a": draw(_NUMBERS)}
    if draw(st.booleans()):
        some["multiple_of"] = {"a": draw(st.integers(1, 64))}
    if draw(st.booleans()):
        some["values"] = {"a": draw(st.lists(_NUMBERS, max_size=5))}
    if draw(st.booleans()):
        some["keep_product"] = ["a", "b"]
    return OnOom(reduce=names, factor=draw(st.floats(0.05, 0.95)), **some), params


@settings(deadline=None)
@given(_jobs(), st.sampled_from([None, 1.0, 900.0]))
def test_it_ends_and_never_leaves_its_bounds(job: tuple[OnOom, dict[str, Scalar]], loading_s: float | None) -> None:
    on_oom, params = job
    walked = _walk(on_oom, params, loading_s)
    assert len({tuple(sorted(map(str, tried.items()))) for tried in walked}) == len(walked)
    for tried in walked[1:]:
        assert tried["c"] == "x"
        for name in on_oom.reduce:
            if not on_oom.keep_product:
                assert float(tried[name]) <= float(params[name])
            if tried[name] != params[name] and not on_oom.keep_product:
                assert float(tried[name]) >= on_oom.floor.get(name, 0)
        changed = tried["a"] != params["a"]
        if changed and "a" in on_oom.reduce and not ("b" in on_oom.reduce and on_oom.keep_product):
            assert _ruled(on_oom, tried["a"])


def _ruled(on_oom: OnOom, value: Scalar) -> bool:
    """Whether the list, else the multiple of `a` has this value."""
    listed = on_oom.values.get("a")
    return value in listed if listed else int(value) % on_oom.multiple_of.get("a", 1) == 0


@st.composite
def _ledgers(draw: st.DrawFn) -> tuple[OnOom, dict[str, Scalar], Seen]:
    """A job with one parameter that gives way, and what other runs showed of it, contradictions and all."""
    some: dict[str, Any] = {}
    if draw(st.booleans()):
        some["known_good"] = {"a": draw(_NUMBERS)}
    if draw(st.booleans()):
        some["floor"] = {"a": draw(_NUMBERS)}
    rule = draw(st.sampled_from(["none", "multiple", "values"]))
    if rule == "multiple":
        some["multiple_of"] = {"a": draw(st.integers(1, 64))}
    if rule == "values":
        some["values"] = {"a": draw(st.lists(_NUMBERS, min_size=1, max_size=6))}
    if draw(st.booleans()):
        some["keep_product"] = ["a", "c"]
    combination = st.fixed_dictionaries({"a": _NUMBERS, "b": st.sampled_from([1, 2]), "c": st.sampled_from([1, 2, 12])})
    known: st.SearchStrategy[list[dict[str, Scalar]]] = st.lists(combination, max_size=5)  # type: ignore[arg-type]
    fitted = draw(known)
    peaks = [(each, draw(st.floats(1000, 90000))) for each in fitted]
    loading_s, loaded_mib = draw(st.sampled_from([None, 1.0, 900.0])), draw(st.sampled_from([None, 500.0]))
    seen = Seen(draw(known), fitted, loading_s, None, peaks, loaded_mib, 97000.0, draw(st.floats(1, 4)))
    return OnOom(reduce=["a"], at_load=["a"], factor=draw(st.floats(0.05, 0.95)), **some), draw(combination), seen  # type: ignore[return-value]


@settings(deadline=None, max_examples=300)
@given(_ledgers(), _NUMBERS)
def test_whatever_other_runs_showed_it_keeps_its_bounds(job: tuple[OnOom, dict[str, Scalar], Seen], limit: int) -> None:
    on_oom, params, seen = job
    steps = [next_step(on_oom, params, seen)]
    if limit < int(params["a"]):
        changed = step_to(on_oom, params, seen, "a", limit)
        steps += [Step(changed, "")] if isinstance(changed, dict) else []
        assert not isinstance(changed, dict) or int(changed["a"]) <= limit
    for step in steps:
        if isinstance(step, Step):
            value = int(step.params["a"])
            assert on_oom.floor.get("a", 1) <= value < int(params["a"])
            assert _ruled(on_oom, value)
            assert not any(at_or_beyond(step.params, failed, on_oom) for failed in seen.failed)
            assert step.params["b"] == params["b"]


def test_a_value_that_fitted_and_failed_later_is_not_good() -> None:
    on_oom = OnOom(reduce=["bs"])
    seen = Seen(failed=[{"bs": 64}], fitted=[{"bs": 64}, {"bs": 48}, {"bs": 16}])
    step = next_step(on_oom, {"bs": 128}, seen)
    assert isinstance(step, Step) and step.params == {"bs": 48}
    seen = replace(seen, failed=[{"bs": 40}])
    step = next_step(on_oom, {"bs": 128}, seen)
    assert isinstance(step, Step) and step.params == {"bs": 16}
    step = next_step(on_oom, {"bs": 128}, replace(seen, loading_s=0.1, work_s=3600.0))
    assert isinstance(step, Step) and step.params == {"bs": 25}, "between 16 and 40"


def test_what_fitted_is_taken_as_the_list_and_the_multiple_have_it() -> None:
    seen = Seen(fitted=[{"n": 30}])
    for on_oom, expected in (
        (OnOom(reduce=["n"], multiple_of={"n": 8}), 24),
        (OnOom(reduce=["n"], values={"n": [100, 50, 20, 10]}), 20),
    ):
        step = next_step(on_oom, {"n": 100}, seen)
        assert isinstance(step, Step) and step.params == {"n": expected}
