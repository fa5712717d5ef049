"""How many attempts and minutes to a first fit, and to 95 % of the best value, on simulated limits; against others.

A job needs constant + linear·x + quadratic·x² of a GPU's memory, starts at a value that is 1.1 to 500 times too
large, and loads for 1 to 22 minutes before it shows whether it fits. Telemetry sees up to 10 % more than is needed.
The others go on by halving what is left between good and bad once they have a first fit: alone, neither halving nor
10 % steps would reach 95 % of the best.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import mean

from gpuctl.watchdog.ladder import Seen, Step, next_step
from gpuctl.watchdog.search import Search
from gpuctl.wire.runspec import OnOom

TOTAL_MIB = 97887
LOADINGS_MIN = (1.0, 5.0, 22.0)
SHOWN_MIN = 1.0  # from ready until it is clear that it fits
KEPT = 0.1  # of what a job needs beside the model: what its allocator may hold in vain
JOBS = 2000
ENOUGH = 0.95


@dataclass(frozen=True)
class Job:
    constant: float
    linear: float
    quadratic: float
    best: int
    first: int
    loading_min: float

    def need(self, value: int) -> float:
        return self.constant + self.linear * value + self.quadratic * value * value


@dataclass
class Trials:
    """Every attempt of one strategy on one job, the first failure included."""

    job: Job
    noise: random.Random
    fitted: dict[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    minutes: float = 0.0
    attempts: int = 0
    first_fit: tuple[int, float] | None = None

    def attempt(self, value: int) -> bool:
        job = self.job
        fits = job.need(value) <= TOTAL_MIB
        self.attempts += 1
        self.minutes += job.loading_min + (SHOWN_MIN if fits else 0.0)
        if fits:
            self.fitted[value] = self.seen(value)
            self.first_fit = self.first_fit or (self.attempts, self.minutes)
        else:
            self.failed.append(value)
        return fits

    def seen(self, value: int) -> int:
        """The peak that telemetry shows: an allocator holds more than is needed."""
        held = (self.job.need(value) - self.job.constant) * (1 + self.noise.uniform(0, KEPT))
        return min(TOTAL_MIB, int(self.job.constant + held))

    @property
    def good(self) -> int:
        return max(self.fitted, default=0)

    @property
    def enough(self) -> bool:
        return self.good >= int(ENOUGH * self.job.best)


Strategy = Callable[[Trials], None]


def halving(trials: Trials) -> None:
    _by_factor(trials, 0.5)


def ten_percent(trials: Trials) -> None:
    _by_factor(trials, 0.9)


def bisection(trials: Trials) -> None:
    """Between 0 and what failed."""
    while not trials.enough:
        trials.attempt(max(1, (trials.good + min(trials.failed)) // 2))


def ladder(trials: Trials) -> None:
    """As a run gives way with nothing known; then as `fit` searches."""
    on_oom, loading_s = OnOom(reduce=["x"]), trials.job.loading_min * 60
    value = trials.job.first
    while not trials.fitted:
        seen = Seen([{"x": failed} for failed in trials.failed], loading_s=loading_s)
        step = next_step(on_oom, {"x": value}, seen)
        assert isinstance(step, Step)
        value = int(step.params["x"])
        trials.attempt(value)
    search = Search(1, trials.job.first, 1, total_mib=TOTAL_MIB, loaded_mib=int(trials.job.constant))
    while not trials.enough:
        next_value = replace(search, fitted=dict(trials.fitted), failed=list(trials.failed)).next_value()
        assert next_value is not None
        trials.attempt(int(next_value))


def ladder_with_ledger(trials: Trials) -> None:
    """As `ladder`, where a trial with a sixteenth of the best had once fitted: what people do before they begin."""
    known = max(1, trials.job.best // 16)
    peak = trials.seen(known)
    seen = Seen(
        [{"x": trials.job.first}], [{"x": known}], trials.job.loading_min * 60, peaks=[({"x": known}, peak)],
        loaded_mib=trials.job.constant, total_mib=TOTAL_MIB,
    )  # fmt: skip
    step = next_step(OnOom(reduce=["x"]), {"x": trials.job.first}, seen)
    assert isinstance(step, Step)
    trials.attempt(int(step.params["x"]))
    trials.fitted.setdefault(known, peak)
    search = Search(1, trials.job.first, 1, total_mib=TOTAL_MIB, loaded_mib=int(trials.job.constant))
    while not trials.enough:
        next_value = replace(search, fitted=dict(trials.fitted), failed=list(trials.failed)).next_value()
        assert next_value is not None
        trials.attempt(int(next_value))


STRATEGIES: dict[str, Strategy] = {
    "halving": halving,
    "steps of 10 %": ten_percent,
    "bisection": bisection,
    "gpuctl, nothing known": ladder,
    "gpuctl, a small trial in the ledger": ladder_with_ledger,
}


def measure() -> Iterator[tuple[str, str]]:
    for loading_min in LOADINGS_MIN:
        for name, strategy in STRATEGIES.items():
            trials = list(run(strategy, loading_min))
            firsts = [each.first_fit or (0, 0.0) for each in trials]
            yield (
                f"loading {loading_min:g} min, {name}",
                f"first fit: {mean(count for count, _ in firsts):.1f} attempts, "
                f"{mean(minutes for _, minutes in firsts):.0f} min; to 95 % of the best: "
                f"{mean(each.attempts for each in trials):.1f} attempts, "
                f"{mean(each.minutes for each in trials):.0f} min",
            )


def run(strategy: Strategy, loading_min: float, jobs: int = JOBS) -> Iterator[Trials]:
    """The same jobs for each strategy."""
    chance = random.Random(7)
    for number in range(jobs):
        trials = Trials(_job(chance, loading_min), random.Random(number))
        trials.attempt(trials.job.first)
        strategy(trials)
        yield trials


def _job(chance: random.Random, loading_min: float) -> Job:
    constant = TOTAL_MIB * chance.uniform(0.2, 0.95)
    best = int(10 ** chance.uniform(0.5, 4))
    bend = chance.random()  # how much of what is left the quadratic term takes
    room = (TOTAL_MIB - constant) * chance.uniform(0.97, 1.0)
    first = max(best + 1, int(best * 10 ** chance.uniform(0.05, 2.7)))
    made = Job(constant, room * (1 - bend) / best, room * bend / best**2, best, first, loading_min)
    while made.need(made.best + 1) <= TOTAL_MIB:
        made = replace(made, best=made.best + 1)
    return replace(made, first=max(made.first, made.best + 1))


def _by_factor(trials: Trials, factor: float) -> None:
    value = trials.job.first
    while not trials.fitted:
        value = max(1, min(value - 1, int(value * factor)))
        trials.attempt(value)
    while not trials.enough:
        trials.attempt((trials.good + min(trials.failed)) // 2)
