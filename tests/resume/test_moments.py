"""What is kept of each second of an attempt, and how it grows sparse."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuctl.node.recording import MomentFile, RecordingJudge, read_moments
from gpuctl.watchdog.moments import Moment, thinned
from gpuctl.wire.incidents import Evidence, Exit
from gpuctl.wire.runspec import Watch
from gpuctl.wire.samples import DeviceSample, Sample, TreeIo


def _moment(at: float, power: float = 100.0, used: float = 10.0, **some: object) -> Moment:
    return Moment(at, gpus={"0": [50, power, used, 700, None]}, **some)  # type: ignore[arg-type]


def test_a_line_and_back() -> None:
    moment = _moment(
        5.5, read={"log": 3}, cut=["a.log"], io=TreeIo(5.0, 1.0, 2, 3), facts=[Evidence("xid_hw", "Xid 79")]
    )
    assert Moment.from_line(moment.to_line()) == moment
    assert Moment.from_line(moment.to_line()[:-4]) is None
    assert len(_moment(1.0).to_line()) < 60


def test_a_judge_keeps_what_it_is_given(tmp_path: Path) -> None:
    judge = RecordingJudge(str(tmp_path), Watch(), started=0.0)
    judge.feed("log", b"one\n", 1.0)
    judge.feed("log", b"two\n", 1.1)
    judge.sample(Sample("", 1.2, [DeviceSample(3, "GPU-x", utilisation=7, power_w=99.6, memory_used_mib=5)]))
    judge.tick(1.2)
    judge.tick(1.3)
    judge.truncated("log")
    judge.tick(2.3)
    judge.feed("log", b"three", 2.4)
    judge.exited(Exit(1), 2.5)
    first, second, third = read_moments(str(tmp_path / "samples.jsonl"))
    assert (first.read, first.gpus) == ({"log": 8}, {"3": [7, 100, 5, None, None]})
    assert (second.cut, second.read, third.read) == (["log"], {}, {"log": 13})
    (sample,) = first.samples({"3": "GPU-x"}, 97887)
    assert (sample.devices[0].uuid, sample.devices[0].power_w) == ("GPU-x", 100)


def test_silence_is_kept_now_and_then_and_the_ending_always(tmp_path: Path) -> None:
    judge = RecordingJudge(str(tmp_path), Watch(), started=100.0)
    for at in range(100, 161):
        judge.tick(float(at))
    judge.ends(161.001)
    assert [moment.mono_s for moment in read_moments(str(tmp_path / "samples.jsonl"))] == [
        100,
        115,
        130,
        145,
        160,
        161.01,
    ]


def test_what_is_said_again_and_again_is_kept_once(tmp_path: Path) -> None:
    judge = RecordingJudge(str(tmp_path), Watch(), started=0.0)
    for _ in range(9):
        judge.truncated("a.log")
    judge.tick(1.0)
    assert [moment.cut for moment in read_moments(str(tmp_path / "samples.jsonl"))] == [["a.log"]]
    storm = [Moment(float(at), cut=["a.log"], facts=[Evidence("xid_hw", "Xid 13")]) for at in range(600)]
    (kept,) = thinned(storm, now=1e6)
    assert (kept.cut, kept.facts) == (["a.log"], storm[0].facts)


def test_old_moments_are_means_and_nothing_said_is_lost() -> None:
    fact = Evidence("xid_hw", "Xid 79")
    old = [_moment(float(at), power=at, used=at, read={"log": at}, facts=[fact] if at == 3 else []) for at in range(10)]
    (kept,) = thinned(old, now=7200.0)
    assert kept.gpus["0"] == [50, 4, 9, 700, None], "the mean of power, the peak of memory"
    assert (kept.mono_s, kept.over_s, kept.read, kept.facts) == (9.0, 9.0, {"log": 9}, [fact])
    assert thinned(old, now=20.0) == old


def test_a_moment_that_stands_for_a_minute_is_looked_at_as_often_as_nobody_slept() -> None:
    moment = _moment(100.0, over_s=59.0)
    assert list(moment.times()) == [60.0, 80.0, 100.0]
    assert [sample.mono_s for sample in moment.samples({}, None)] == [60.0, 80.0, 100.0]


def test_a_month_is_little() -> None:
    month = [_moment(float(at)) for at in range(0, 30 * 86400, 30)]
    kept = thinned(month, now=30 * 86400.0)
    assert len(kept) < 15_000
    assert thinned(kept, now=30 * 86400.0) == kept


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1e6))
def test_thinning_keeps_order_and_the_last_word(times: list[float], more: float) -> None:
    moments = [_moment(at, read={"log": index}) for index, at in enumerate(sorted(times))]
    kept = thinned(moments, now=max(times) + more)
    assert [moment.mono_s for moment in kept] == sorted(moment.mono_s for moment in kept)
    assert kept[-1].read == moments[-1].read
    assert kept[-1].mono_s == moments[-1].mono_s


def test_the_file_thins_itself_and_bears_a_full_disk(tmp_path: Path) -> None:
    file = MomentFile(str(tmp_path / "samples.jsonl"), thin_after=20)
    for at in range(0, 20_000, 1000):
        file.append(_moment(float(at)))
        file.append(_moment(at + 1.0))
    assert len(read_moments(file.path)) < 30
    MomentFile("/dev/full").append(_moment(1.0))
    MomentFile(str(tmp_path / "no/such/folder")).append(_moment(1.0))
