"""Stalled and low power, on lives told second by second; the powers are those measured on a 700 W card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gpuctl.watchdog.judge import Judge
from gpuctl.watchdog.vitals import Recovered
from gpuctl.wire.incidents import Incident
from gpuctl.wire.runspec import Finding, Watch
from gpuctl.wire.samples import DeviceSample, Sample, TreeIo

MATMUL, WORK, COPIES, TINY, CONTEXT, IDLE = 691.0, 357.0, 129.0, 139.0, 121.0, 79.0
PROGRESS = r"step (?P<done>\d+)/(?P<total>\d+)"
STALL = Watch(progress=PROGRESS, stall=Finding(60.0, "relaunch"))
NO_STALL = Finding(1e9)


@dataclass
class Life:
    """An attempt's life; each call goes on from where the last one ended. The supervisor's own cadence: every second a
    sample and a look, every five a look at the processes' I/O."""

    watch: Watch = STALL
    type: str = "task"
    limit_w: float | None = 700.0
    at: float = 0.0
    step: int = 0
    incidents: list[Incident] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.judge = Judge(self.watch, type=self.type, started=0.0)

    def go(
        self,
        seconds: float,
        *watts: float | None,
        utilisation: Sequence[int | None] = (100,),
        step_s: float | None = None,
        line: Callable[[int], str] | None = None,
        read_bytes: int = 300,
        written_bytes: int = 0,
        cpu_s: float = 1.0,
        io: bool = True,
    ) -> Life:
        """So many seconds at these powers, GPU by GPU; a step every `step_s`."""
        next_step = self.at + (step_s or 0)
        for _ in range(round(seconds)):
            self.at += 1.0
            if watts:
                self.judge.sample(Sample("", self.at, self._devices(watts, utilisation)))
            if step_s is not None and self.at >= next_step:
                next_step += step_s
                self.step += 1
                self.say(f"step {self.step}/900 loss 2.1")
            if line is not None:
                self.say(line(round(self.at)))
            if io and self.at % 5 == 0:
                self.judge.io(TreeIo(self.at, 5.0, read_bytes, written_bytes, cpu_s * 5))
            self.incidents += self.judge.tick(self.at)
            self.recovered += self.judge.recovered()
        return self

    def say(self, line: str) -> Life:
        self.judge.feed("log", f"{line}\n".encode(), self.at)
        return self

    def _devices(self, watts: Sequence[float | None], utilisation: Sequence[int | None]) -> list[DeviceSample]:
        used = [*utilisation, *[utilisation[-1]] * len(watts)]
        return [
            DeviceSample(
                index, f"GPU-{index}", power_w=power, power_limit_w=self.limit_w, utilisation=used[index],
                memory_used_mib=40_000, memory_total_mib=143_000,
            )
            for index, power in enumerate(watts)
        ]  # fmt: skip

    @property
    def classes(self) -> list[str]:
        return [incident.cls for incident in self.incidents]


def at_work(watch: Watch = STALL, **how: object) -> Life:
    return Life(watch, **how).go(120, MATMUL, step_s=2)  # type: ignore[arg-type]


# ── stalled ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_spinning_collective_is_a_stall() -> None:
    life = at_work().go(75, CONTEXT, 119.0, utilisation=(100, 0))
    assert life.classes == [], "its power is averaged: the hang begins to count once the mean is down"
    (incident,) = life.go(30, CONTEXT, 119.0, utilisation=(100, 0)).incidents
    assert (incident.cls, incident.fatal, incident.phase, incident.gpu) == ("stalled", True, "train", 1)
    assert "rank on GPU 1" in incident.advice
    texts = [evidence.text for evidence in incident.evidence]
    assert texts[0].startswith("last signs of life: ")
    assert "step 60/900 loss 2.1" in texts
    assert "GPU 0: 121 of 700 W (17%) on average at 100 % utilisation, 28% of its memory in use" in texts


def test_what_the_log_says_of_its_cause_is_quoted() -> None:
    said = "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE) ran 30 s"
    (incident,) = at_work().say(said).go(120, CONTEXT).incidents
    assert incident.cls == "stalled"
    assert incident.evidence[-1].cls == "nccl_timeout"


def test_told_once_and_again_after_a_recovery() -> None:
    life = at_work(Watch(stall=Finding(60.0))).go(300, CONTEXT)
    assert life.classes == ["stalled"]
    assert not life.incidents[0].fatal, "an alert by default"
    assert life.go(30, MATMUL, step_s=2).recovered[0].cls == "stalled"
    assert life.go(300, CONTEXT).classes == ["stalled", "stalled"]


@pytest.mark.parametrize(
    "sign",
    [
        {"line": lambda second: "waiting for a lock" if second % 50 == 0 else ""},
        {"step_s": 55},
        {"read_bytes": 2_000_000},
    ],
)
def test_one_sign_of_life_is_enough(sign: dict[str, object]) -> None:
    assert at_work().go(600, CONTEXT, **sign).classes == []  # type: ignore[arg-type]


def test_what_was_printed_before_hides_no_io() -> None:
    life = at_work().say("x" * 10_000_000)
    assert life.go(600, CONTEXT, written_bytes=500_000).classes == []


def test_power_vetoes() -> None:
    assert at_work().go(600, TINY + 20).classes == []
    assert at_work().go(600, CONTEXT, WORK).classes == [], "one GPU at work is a sign, whatever the others do"


def test_bursts_of_work_are_seen_in_the_mean() -> None:
    life = at_work()
    for _ in range(20):
        life.go(40, CONTEXT).go(4, MATMUL)
    assert life.classes == []


def test_monitors_that_go_on_in_a_hung_job_are_no_io() -> None:
    life = at_work()
    for _ in range(20):
        life.go(10, CONTEXT).go(5, CONTEXT, read_bytes=38_000)
    assert life.classes == ["stalled"]


def test_loading_is_no_stall() -> None:
    quiet = Life().say("Loading model weights").go(1800, CONTEXT)
    assert quiet.classes == []
    unknown = Life(Watch(stall=Finding(60.0))).say("hello").go(1800, CONTEXT)
    assert unknown.classes == [], "who has not computed yet may be loading, in silence"
    named = Life(Watch(ready="model is up", stall=Finding(60.0))).say("step 1/9").go(300, MATMUL).go(900, CONTEXT)
    assert named.classes == []
    assert Life(Watch(ready="model is up", ready_within_s=300.0)).go(400, CONTEXT).classes == ["timeout"]


def test_a_job_whose_lines_nobody_knows_stalls_once_it_has_computed() -> None:
    life = Life(Watch(stall=Finding(60.0))).say("hello").go(100, MATMUL, line=lambda second: f"{second} …")
    (incident,) = life.go(300, CONTEXT).incidents
    assert (incident.cls, incident.fatal) == ("stalled", False)


def test_a_checkpoint_that_is_being_written_is_given_time() -> None:
    life = at_work().say("Saving model checkpoint to output/checkpoint-500").go(180, CONTEXT)
    assert life.classes == []
    assert life.go(60, CONTEXT).classes == ["stalled"], "not for ever"
    written = at_work().say("Saved checkpoint to output/checkpoint-500").go(120, CONTEXT)
    assert written.classes == ["stalled"]


def test_a_slow_jobs_own_pace_counts() -> None:
    slow = Life().go(900, MATMUL, step_s=100)
    assert slow.go(250, CONTEXT).classes == []
    assert slow.go(100, CONTEXT).classes == ["stalled"]


def test_a_small_card_idles_high() -> None:
    """70 W, of which an open context takes 26: what it drew while it loaded shows that."""
    life = Life(limit_w=70.0).say("Loading model weights").go(60, 26.0).go(200, 66.0, step_s=2)
    assert life.go(120, 26.5).classes == ["stalled"]
    slow = Life(limit_w=70.0).say("Loading model weights").go(60, 26.0).go(200, 66.0, step_s=2)
    assert slow.go(600, 34.0).classes == [], "more than it idles at"


@pytest.mark.parametrize("how", [{"limit_w": None}, {}])
def test_what_cant_be_read_is_told_and_ends_nothing(how: dict[str, None]) -> None:
    life = at_work(**how).go(140, CONTEXT, io="limit_w" in how)
    (incident,) = life.incidents
    assert (incident.cls, incident.fatal) == ("stalled", False)
    assert "can't be read" in incident.advice


def test_without_gpus_who_computes_does_not_stall() -> None:
    assert Life().go(60, step_s=2).go(600, cpu_s=1.0).classes == []
    (incident,) = Life().go(60, step_s=2).go(600, cpu_s=0.0).incidents
    assert (incident.cls, incident.fatal) == ("stalled", True)


def test_who_never_said_a_word_may_stall_too() -> None:
    assert Life(Watch(stall=Finding(60.0))).go(200, cpu_s=0.0).classes == ["stalled"]
    assert Life(Watch(stall=Finding(60.0))).go(100, MATMUL).go(200, CONTEXT).classes == ["stalled"]


def test_a_service_may_be_quiet() -> None:
    assert Life(type="service").say("Uvicorn running on http://x:1").go(4000, CONTEXT).classes == []


def test_time_that_nobody_saw_proves_nothing() -> None:
    life = at_work()
    life.at += 7200
    assert life.go(30, CONTEXT).classes == []
    assert life.go(120, CONTEXT).classes == ["stalled"]


def test_without_a_word_in_the_job_file() -> None:
    life = at_work(Watch()).go(1700, CONTEXT)
    assert life.classes == []
    (incident,) = life.go(200, CONTEXT).incidents
    assert (incident.cls, incident.fatal) == ("stalled", False)


@pytest.mark.parametrize("slept", [100, 3600])
def test_a_hang_right_after_a_sleep_is_not_found_later_for_it(slept: int) -> None:
    life = at_work()
    life.at += slept
    life.say("step 61/900 loss 2.1").go(140, CONTEXT)
    assert life.classes == ["stalled"]


# ── low power ───────────────────────────────────────────────────────────────────────────────────────────────────────

LOW = Watch(stall=NO_STALL, low_power=Finding(60.0, below=0.5))


def test_an_input_bound_job_that_progresses() -> None:
    life = Life(LOW).go(60, COPIES, step_s=2)
    assert life.classes == []
    (incident,) = life.go(300, COPIES, step_s=2).incidents
    assert (incident.cls, incident.fatal, incident.gpu) == ("low_power", False, 0)
    assert "18% of their power limit" in incident.advice
    assert "wait for input" in incident.advice
    assert incident.evidence[0].text.startswith("GPU 0: 129 of 700 W (18%)")


def test_a_hung_job_is_no_low_power() -> None:
    assert Life(LOW).go(200, MATMUL, step_s=2).go(600, CONTEXT).classes == []


def test_its_loading_does_not_count() -> None:
    life = Life(LOW).say("Loading model weights").go(600, CONTEXT)
    assert life.go(300, MATMUL, step_s=2).classes == []


def test_half_duty_is_half_power() -> None:
    """Readings swing from sample to sample; only the mean says anything."""
    life = Life(Watch(stall=NO_STALL, low_power=Finding(60.0, below=0.4)))
    for _ in range(150):
        life.go(1, MATMUL, utilisation=(95,), step_s=1).go(1, CONTEXT, utilisation=(0,), step_s=1)
    assert life.classes == []


def test_low_power_is_over_when_it_draws_more_again() -> None:
    life = Life(LOW).go(200, COPIES, step_s=2).go(200, MATMUL, step_s=2)
    assert [one.cls for one in life.recovered] == ["low_power"]
    assert life.go(200, COPIES, step_s=2).classes == ["low_power", "low_power"]


def test_250_of_600_watts() -> None:
    life = Life(Watch(low_power=Finding(300.0, below=0.5)), limit_w=600.0).go(400, *[250.0] * 4, step_s=3)
    assert life.classes == ["low_power"]
    assert "28% of a GPU's memory is in use: a larger batch or sequence has room" in life.incidents[0].advice
    assert Life(Watch(), limit_w=600.0).go(2000, *[250.0] * 4, step_s=3).classes == [], "only below a quarter, unasked"


def test_no_reading_is_no_low_power() -> None:
    assert Life(LOW).go(300, None, step_s=2).classes == []


@pytest.mark.parametrize("pause_s", [20, 60, 300])
def test_a_long_evaluation_is_no_low_power(pause_s: int) -> None:
    life = Life(Watch(progress=PROGRESS, stall=NO_STALL, low_power=Finding(60.0, "relaunch", below=0.5)))
    for _ in range(4):
        life.go(120, MATMUL, step_s=2).go(pause_s, CONTEXT)
    assert life.go(200, MATMUL, step_s=2).classes == []


def test_low_power_is_judged_over_readings_of_all_of_its_time() -> None:
    life = Life(LOW).go(30, COPIES, step_s=2)
    life.go(200, step_s=2)  # no reading comes
    assert life.go(50, COPIES, step_s=2).classes == []
    assert life.go(30, COPIES, step_s=2).classes == ["low_power"]


def test_a_slow_job_may_draw_too_little() -> None:
    assert Life(LOW).go(900, COPIES, step_s=100).classes == ["low_power"]
