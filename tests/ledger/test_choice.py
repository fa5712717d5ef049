"""Which value the ladder takes next, by what the ledger knows and by what an attempt costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuctl.watchdog.ladder import Exhausted, Seen, Step, next_step
from gpuctl.watchdog.ledger import standing, with_code
from gpuctl.watchdog.policy import decide
from gpuctl.wire.incidents import AttemptRecord, Evidence, Incident
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.runspec import OnOom, RunSpec, Scalar

GIB = 1 << 30
PLAIN = OnOom(reduce=["bs"])


def taken(seen: Seen, bs: int = 2000, on_oom: OnOom = PLAIN) -> Scalar:
    step = next_step(on_oom, {"bs": bs}, seen)
    assert isinstance(step, Step), step
    return step.params["bs"]


def entry(bs: int, *, cls: str | None = None, **some: Any) -> LedgerEntry:
    base = LedgerEntry(f"job-{bs}", 1, "job", "t", "H200", 1, {"bs": bs}, fitted=cls is None, cls=cls)
    return replace(base, **some)


def decided(bs: int, *ledger: LedgerEntry, on_oom: OnOom = PLAIN, duration_s: float = 5.0, **message: Any) -> Scalar:
    incident = Incident("gpu_oom", True, evidence=[Evidence("gpu_oom", "…")], gpu=0, **message)
    spec = RunSpec("job-new", "job", "sim", "t.py {bs}", params={"bs": bs}, on_oom=on_oom)
    record = AttemptRecord(1, {"bs": bs}, incident, duration_s=duration_s)
    action = decide(incident, spec, {"bs": bs}, [record], ledger=list(ledger))
    assert action.kind == "relaunch", action
    return action.params["bs"]


def test_what_fitted_before_at_once_where_loading_is_dear() -> None:
    assert decided(2000, entry(4), duration_s=1300.0) == 4
    assert decided(2000, entry(4), entry(16), entry(32, cls="gpu_oom"), duration_s=1300.0) == 16


def test_a_long_run_is_worth_a_try_above_what_fits() -> None:
    long = entry(4, exit_code=0, duration_s=36000.0)
    assert decided(2000, long, duration_s=1300.0) == 89
    assert decided(8, long, duration_s=1300.0) == 5
    assert decided(5, long, duration_s=30000.0) == 4, "a fifth faster is not worth eight hours"


def test_what_failed_before_and_what_is_beyond_it_is_not_tried() -> None:
    assert decided(2000, entry(100, cls="gpu_oom"), duration_s=5.0) == 62, "not 1000, 500, 250, 125"
    assert decided(2000, entry(4), entry(20, cls="gpu_oom"), duration_s=5.0) == 8, "the middle of 4 and 20"


def test_what_others_saw_is_advice() -> None:
    floor = OnOom(reduce=["bs"], floor={"bs": 500})
    assert decided(2000, entry(400, cls="gpu_oom"), on_oom=floor) == 1000, "else nothing would be left"


def test_failures_of_other_code_do_not_count() -> None:
    old, new = {"commit": "a", "dirty": False}, {"commit": "b", "dirty": False}
    entries = [entry(8, cls="gpu_oom", code=old), entry(4, code=old), entry(9, cls="gpu_oom", code=None)]
    assert [left.params["bs"] for left in with_code(entries, new)] == [4, 9]
    assert with_code(entries, old) == with_code(entries, None) == entries
    assert standing([entry(8, cls="gpu_oom"), entry(16)], PLAIN) == []


def test_the_memory_curve_says_where_to_try() -> None:
    curve = [entry(4, peak_mib=92000, total_mib=97000), entry(8, peak_mib=92400, total_mib=97000)]
    assert decided(2000, *curve, duration_s=5.0) == 24, "where memory reaches 97 % by a line through both"
    loaded = entry(4, peak_mib=92400, loaded_mib=92000, total_mib=97000)
    assert decided(2000, loaded, duration_s=5.0) == 20


def test_a_curve_that_says_that_it_had_fitted_is_not_believed() -> None:
    misleading = [entry(4, peak_mib=100, total_mib=97000), entry(8, peak_mib=101, total_mib=97000)]
    assert decided(2000, *misleading, duration_s=5.0) == 126, "the middle of 8 and 2000"


def test_listed_values_only() -> None:
    listed = OnOom(reduce=["bs"], values={"bs": [2000, 512, 64, 16, 4]}, known_good={"bs": 4})
    assert decided(2000, on_oom=listed, duration_s=5.0) == 64
    assert decided(2000, on_oom=listed, duration_s=1300.0) == 4


def test_steps_grow_where_loading_is_dear() -> None:
    values, seen = [2000], Seen(loading_s=1300.0)
    while isinstance(
        step := next_step(PLAIN, {"bs": values[-1]}, replace(seen, failed=[{"bs": bs} for bs in values])), Step
    ):
        values.append(int(step.params["bs"]))
    assert values == [2000, 1000, 250, 31, 1]
    assert isinstance(step, Exhausted)
    assert taken(Seen(loading_s=5.0, failed=[{"bs": 4000}, {"bs": 8000}])) == 1000, "cheap: one step at a time"


def test_a_request_that_no_empty_gpu_could_serve() -> None:
    asked = {"requested_bytes": 800 * GIB, "total_bytes": 80 * GIB}
    assert decided(2000, **asked) == 200
    assert decided(2000, **{**asked, "requested_bytes": 8 * GIB}) == 1000
    at_floor = OnOom(reduce=["bs"], floor={"bs": 1500})
    assert decided(2000, on_oom=at_floor, **asked) == 1500
