"""Whatever happens to a run, the policy brings it to an end, and on the way keeps what it promises.

A run is simulated by its policy alone: each attempt ends by whatever hypothesis thinks of, and the policy's answer
makes the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuctl.watchdog import budgets
from gpuctl.watchdog.policy import AT_LOAD, GIVES_WAY, decide
from gpuctl.wire.incidents import Action, AttemptRecord, Evidence, Incident
from gpuctl.wire.names import FailureClass
from gpuctl.wire.runspec import OnOom, Relaunches, RunSpec

CLASSES: tuple[str, ...] = get_args(FailureClass)
MEMORY = (*GIVES_WAY, *AT_LOAD)
GIB = 1 << 30
TEXTS = (
    "CUDA out of memory.",
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation",
    "try setting max_split_size_mb to avoid fragmentation",
    "the estimated maximum model length is 12. Try decreasing `seq`",
    "seq (64) exceeds available blocks (7)",
)


@dataclass(frozen=True)
class End:
    """How one attempt ends."""

    cls: str
    text: str = ""
    duration_s: float = 5.0
    loaded: bool = False
    progressed: bool = False
    empty: bool = True
    foreign: bool = False
    requested_gib: int | None = None
    checkpoint: bool = False  # one was written

    def incident(self) -> Incident:
        others = [{"pid": 7, "bytes": 60 * GIB}] if self.foreign else []
        asked = None if self.requested_gib is None else self.requested_gib * GIB
        evidence = Evidence(self.cls, self.text, requested_bytes=asked, others=others, in_use_bytes=GIB, frame="x.py:1")
        return Incident(self.cls, True, evidence=[evidence], requested_bytes=asked)


ends = st.builds(
    End,
    cls=st.sampled_from([*("gpu_oom",) * 12, *MEMORY * 4, *CLASSES]),
    text=st.sampled_from(TEXTS),
    duration_s=st.sampled_from([1.0, 59.0, 300.0, 4000.0]),
    loaded=st.booleans(),
    progressed=st.booleans(),
    empty=st.sampled_from([True] * 9 + [False]),
    foreign=st.sampled_from([False] * 9 + [True]),
    requested_gib=st.sampled_from([None, 1, 2, 3]),
    checkpoint=st.sampled_from([False] * 4 + [True]),
)
sizes = st.one_of(st.sampled_from([2000, 4096, 511]), st.integers(1, 5000))
budget = st.builds(Relaunches, st.integers(0, 4), st.sampled_from([0.0, 30.0]))
on_ooms = st.builds(
    OnOom,
    reduce=st.sampled_from([["bs"], ["bs", "seq"], ["seq", "bs"]]),
    at_load=st.sampled_from([[], ["seq"], ["seq", "bs"]]),
    known_good=st.sampled_from([{}, {"bs": 4}, {"bs": 16, "seq": 8}]),
    factor=st.sampled_from([0.25, 0.5, 0.9, 0.99]),
    floor=st.sampled_from([{}, {"bs": 2}, {"bs": 1, "seq": 16}]),
    multiple_of=st.sampled_from([{}, {"bs": 8}, {"seq": 16}]),
    values=st.sampled_from([{}, {"bs": [512, 128, 100, 3]}]),
    max_relaunches=st.sampled_from([40, 6, 1, 0]),
    max_lost_s=st.sampled_from([None, 60.0]),
    resume_changed=st.sampled_from([True, True, False]),
)
specs = st.builds(
    RunSpec,
    run=st.just("job-abc123"),
    job=st.just("job"),
    node=st.just("sim"),
    command=st.just("train {bs} {seq}"),
    params=st.fixed_dictionaries({"bs": sizes, "seq": sizes, "name": st.just("x")}),
    on_oom=st.one_of(on_ooms, on_ooms, on_ooms, st.none()),
    on_failure=budget,
    policy=st.dictionaries(st.sampled_from(CLASSES), st.one_of(st.sampled_from(["stop", "alert"]), budget), max_size=3),
)


@dataclass
class Life:
    """One run: its attempts so far, and what the policy answered to each."""

    spec: RunSpec
    history: list[AttemptRecord] = field(default_factory=list)
    answers: list[Action] = field(default_factory=list)
    written: int = 0  # checkpoints

    def checkpoint(self) -> str | None:
        """The newest that is not given up."""
        given_up = {path for path, _ in budgets.spoiled(self.history)}
        return next((name for n in range(self.written, 0, -1) if (name := f"{n}.pt") not in given_up), None)

    def run(self, ends: list[End]) -> bool:
        """Whether the policy ended it. The last of `ends` is what happens for ever after."""
        params = dict(self.spec.params)
        for number in range(1, 400):
            end = ends[min(number, len(ends)) - 1]
            resumed = self.checkpoint()
            self.written += end.checkpoint
            self.history.append(
                AttemptRecord(
                    number, dict(params), end.incident(), end.duration_s, 1.0 if end.loaded or end.progressed else None,
                    end.progressed, end.empty, resumed_from=resumed,
                )
            )  # fmt: skip
            action = decide(end.incident(), self.spec, params, self.history, resumes=self.checkpoint() is not None)
            self.answers.append(action)
            if action.kind != "relaunch":
                return True
            params = dict(action.params)
        return False


def _showed(record: AttemptRecord) -> bool:
    """Whether the attempt's end shows that its values do not fit, for certain and for good."""
    incident = record.incident
    assert incident is not None
    plain = incident.cls in ("gpu_oom", *AT_LOAD)
    return plain and record.gpus_were_empty and not incident.evidence[0].others


@settings(max_examples=400, deadline=None)
@given(specs, st.lists(ends, min_size=1, max_size=20))
def test_it_ends_and_says_why(spec: RunSpec, ends: list[End]) -> None:
    life = Life(spec)
    assert life.run(ends), f"{len(life.history)} attempts: {[answer.why for answer in life.answers[-3:]]}"
    last = life.answers[-1]
    assert last.kind in ("stop", "alert")
    assert last.why
    assert last.state in ("failed", "blocked")


@settings(max_examples=400, deadline=None)
@given(specs, st.lists(ends, min_size=1, max_size=20))
def test_values_that_failed_are_never_tried_again(spec: RunSpec, ends: list[End]) -> None:
    own = set(spec.policy) & set(MEMORY)  # a budget of the job's own for it means: the same once more
    life = Life(replace(spec, policy={name: answer for name, answer in spec.policy.items() if name not in own}))
    life.run(ends)
    failed: list[dict[str, Any]] = []
    for record, answer in zip(life.history, life.answers, strict=True):
        if _showed(record):
            failed.append(record.params)
            assert answer.kind != "relaunch" or answer.params not in failed, (failed, answer)


@settings(max_examples=400, deadline=None)
@given(specs, st.lists(ends, min_size=1, max_size=20))
def test_values_stay_within_their_bounds(spec: RunSpec, ends: list[End]) -> None:
    life = Life(spec)
    life.run(ends)
    on_oom = spec.on_oom or OnOom()
    for before, answer in zip(life.history, life.answers, strict=True):
        if answer.kind != "relaunch":
            continue
        assert set(answer.params) == set(spec.params)
        for name, value in answer.params.items():
            if value == before.params[name]:
                continue
            assert name in (*on_oom.reduce, *on_oom.at_load)
            assert isinstance(value, int)
            assert value < before.params[name]  # type: ignore[operator]
            assert value >= max(1, on_oom.floor.get(name, 1))
            own = [*on_oom.values.get(name, []), on_oom.known_good.get(name)]  # the job's own word
            assert value % on_oom.multiple_of.get(name, 1) == 0 or value in own


@settings(max_examples=200, deadline=None)
@given(specs, st.lists(ends, min_size=1, max_size=20))
def test_nothing_changes_for_what_a_smaller_value_can_not_cure(spec: RunSpec, ends: list[End]) -> None:
    life = Life(spec)
    life.run(ends)
    for record, answer in zip(life.history, life.answers, strict=True):
        assert record.incident is not None
        foreign = not record.gpus_were_empty or record.incident.evidence[0].others
        if answer.kind == "relaunch" and (record.incident.cls not in MEMORY or foreign):
            assert answer.params == record.params


@settings(max_examples=200, deadline=None)
@given(specs, st.lists(ends, min_size=1, max_size=20))
def test_no_changed_values_from_a_checkpoint_unless_the_job_says_so(spec: RunSpec, ends: list[End]) -> None:
    life = Life(spec)
    life.run(ends)
    if spec.on_oom is not None and spec.on_oom.resume_changed:
        return
    for record, answer in zip(life.history, life.answers, strict=True):
        if answer.kind == "relaunch" and answer.params != record.params:
            at = life.history.index(record)
            partial = Life(spec, life.history[: at + 1], written=sum(_wrote(ends, n) for n in range(at + 1)))
            assert partial.checkpoint() is None


def _wrote(ends: list[End], index: int) -> int:
    return ends[min(index + 1, len(ends)) - 1].checkpoint


@settings(max_examples=200, deadline=None)
@given(specs, st.lists(ends, min_size=1, max_size=20))
def test_a_service_ends_where_it_never_runs_for_an_hour(spec: RunSpec, ends: list[End]) -> None:
    short = [replace(end, duration_s=min(end.duration_s, 300.0)) for end in ends]
    assert Life(replace(spec, type="service")).run(short)


@given(specs, st.lists(ends, min_size=1, max_size=6))
def test_it_answers_a_replay_as_it_answered_the_run(spec: RunSpec, ends: list[End]) -> None:
    one, other = Life(spec), Life(spec)
    one.run(ends)
    other.run(ends)
    assert one.answers == other.answers
