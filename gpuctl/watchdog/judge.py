"""The judge of one attempt: takes its logs, its samples and its exit, answers what they mean. Time comes in as
arguments (CLOCK_BOOTTIME, seconds); there is no I/O here, so a recorded run can be judged again.

A line is never a verdict. While the process lives, only a dead thread or rank after which the progress stops is one;
the rest waits for the exit.
"""

from __future__ import annotations

import re
import signal
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Callable, ContextManager, Dict, Iterable, List, Optional, Sequence, Set, Union

from gpuctl.watchdog import facts as machine
from gpuctl.watchdog import verdict
from gpuctl.watchdog.advice import advise
from gpuctl.watchdog.deaths import Deaths
from gpuctl.watchdog.lines import Line, LineReader
from gpuctl.watchdog.pace import Pace
from gpuctl.watchdog.reading import Reading, line_reader
from gpuctl.watchdog.stall import GAP_S
from gpuctl.watchdog.vitals import Recovered, Vitals
from gpuctl.wire.incidents import Evidence, Exit, Incident
from gpuctl.wire.runspec import Watch
from gpuctl.wire.samples import Sample, TreeIo

_SERVING = re.compile(
    r"application startup complete|uvicorn running on|server (?:is )?(?:started|listening|ready)|the server is fired up"
    r"|listening on (?:https?://|port|\S+:\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Loading:
    """A first sign that the model is being loaded."""

    line: str


@dataclass(frozen=True)
class Ready:
    """Loading is over."""

    line: str


@dataclass(frozen=True)
class Progress:
    done: float
    total: Optional[float] = None


@dataclass(frozen=True)
class Done:
    """The job's own line that says that it ended well."""

    line: str


@dataclass(frozen=True)
class TooSlow:
    """A regular expression of the job file was given up: it took too long on a line."""

    key: str
    pattern: str


Notice = Union[Loading, Ready, Progress, Done, TooSlow]
Guard = Callable[[], ContextManager[object]]
"""Makes a context in which `TimeoutError` is raised when matching takes too long. The caller owns the clock (an
interval timer interrupts Python's matcher); without one, the length of a line is the only limit."""


class Judge:
    """One per attempt. `type` is the job's: a `service` never ends by itself and makes no progress that counts."""

    def __init__(
        self, watch: Watch, *, type: str = "task", started: Optional[float] = None, guard: Optional[Guard] = None
    ) -> None:
        self.watch = watch
        self.reading = Reading()
        self.loading_s: Optional[float] = None
        self.progressed = False
        self.last_sample: Optional[Sample] = None
        self._type = type
        self._started = started
        self._readers: Dict[str, LineReader] = {}
        self._patterns = {
            key: re.compile(source)
            for key, source in (("ready", watch.ready), ("progress", watch.progress), ("done", watch.done))
            if source is not None
        }
        self._guard: Guard = guard or nullcontext
        self._ready = False
        self._said_loading = False
        self._pace = Pace()
        self._deaths = Deaths(watch, type)
        self._told: Set[str] = set()
        self._vitals = Vitals(watch, type)
        self._facts = machine.Facts()
        self._heard = 0.0
        self._ticked: Optional[float] = None
        self._skipped_s = 0.0  # of its time, nobody looked
        self.again = False  # what is fed is read again: nobody knows when it was written

    @property
    def phase(self) -> str:
        """`load` until the job is ready, then `train`, or `infer` for a service."""
        if not self._ready:
            return "load" if self._said_loading else "unknown"
        return "infer" if self._type == "service" else "train"

    # ── what comes in ───────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, source: str, data: bytes, at: float) -> List[Notice]:
        """Bytes of one followed file, in order. Of the progress in them only the last is answered."""
        self._start(at)
        reader = self._readers.get(source)
        if reader is None:
            reader = self._readers[source] = line_reader()
        reader.whole = bool(self._waited_for())
        self._heard = at
        lines = reader.feed(data)
        self._vitals.heard(lines, source, at, 0 if self.again else len(data))
        return self._read(lines, source, at)

    def truncated(self, source: str) -> None:
        """The file was cut or replaced: its half line is no beginning of what comes next."""
        if source in self._readers:
            self._readers[source].forget()

    def sample(self, sample: Sample) -> None:
        self._start(sample.mono_s)
        self.last_sample = sample
        self._vitals.sample(sample)
        self._facts.hear(sample, self.reading.moves)

    def fact(self, evidence: Evidence) -> None:
        """What the machine says: the kernel, the driver, a disk (`gpuctl.watchdog.facts`)."""
        sampled = self.last_sample.mono_s if self.last_sample is not None else 0.0
        at = max(self._ticked or 0.0, self._started or 0.0, self._heard, sampled)  # the latest that is known
        self._facts.add(evidence, self.reading.moves, at)

    def io(self, io: TreeIo) -> None:
        """What the attempt's processes read and wrote. Worth looking for only where it is quiet: see `quiet_s`."""
        self._vitals.io(io)

    def quiet_s(self, at: float) -> float:
        """How long there was neither output nor progress."""
        return self._vitals.quiet_s(at)

    @property
    def suspects(self) -> bool:
        """Is something being waited for that the processes' I/O may disprove?"""
        return self._deaths.suspects or self._facts.hangs

    def know(self, findings: Iterable[Incident]) -> None:
        """What was told of this attempt before, by a supervisor that is gone, is not told again."""
        for found in findings:
            self._told.add("late" if (found.cls, found.phase) == ("timeout", "load") else found.cls)
            self._deaths.know(found)
            self._facts.know(found)
            self._vitals.know(found.cls)

    def recovered(self) -> List[Recovered]:
        """Findings of `tick` that hold no more, each once."""
        return self._vitals.recovered()

    def tick(self, at: float) -> List[Incident]:
        """What has become certain by now. Each is answered once; `fatal` ones ask for the attempt's end."""
        self._start(at)
        self._mind_gap(at)
        signs = self._vitals.look(at, phase=self.phase, usual_s=self._pace.usual_s)
        dead = self._deaths.look(at, self.reading, self._pace, self._vitals, ready=self._ready)
        active = max(self._heard, self._vitals.active_at)
        found = [self._late(at), dead, self._fading(), *self._facts.news(at, active), *map(self._with_cause, signs)]
        return [incident for incident in found if incident is not None]

    def exited(self, exit: Exit, at: float, facts: Sequence[Evidence] = ()) -> Optional[Incident]:
        """Why the attempt ended; `facts` are what the machine says of its end. None: it succeeded, was ended on
        request, or its exit can't be known."""
        self._start(at)
        for source, reader in self._readers.items():
            self._read(reader.close(), source, at)
        if exit.asked or (exit.exit_code is None and exit.signal is None):
            return None
        if exit.left_behind:
            return _made(
                "code_error",
                "Its command went to the background: the first process ended while others go on and hold GPU memory. "
                "gpuctl detaches by itself; let the command run in the foreground.",
            )
        if exit.exit_code == 0 and self._type != "service":
            return None
        found = verdict.incident(self.reading, failed=exit.exit_code != 0)
        if exit.exit_code != 0:
            explained = self._by_facts(found, exit, facts, at)
            if explained is not None:
                return explained
        if found is not None and (found.fatal or exit.exit_code != 0):
            return replace(found, fatal=True)
        if exit.setup_failed:
            return _made(
                "code_error",
                f"Its `setup` failed (exit code {exit.exit_code}), so its command was not started.",
                f"exit code {exit.exit_code} in `setup`",
            )
        return self._unexplained(exit)

    def _by_facts(
        self, found: Optional[Incident], exit: Exit, facts: Sequence[Evidence], at: float
    ) -> Optional[Incident]:
        for evidence in facts:
            self._facts.add(evidence, self.reading.moves, at)
        explained = machine.explain(found, exit, self.reading, self._facts.known, at)
        if explained is not None and explained.phase == "unknown":
            return replace(explained, phase=self.phase)
        return explained

    # ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, at: float) -> None:
        if self._started is None:
            self._started = at

    def _waited_for(self) -> List[str]:
        """The job's own lines that may come anywhere: while one is awaited, every line is read."""
        return [key for key in self._patterns if key == "done" or (key == "ready" and not self._ready)]

    def _read(self, lines: List[Line], source: str, at: float) -> List[Notice]:
        notices: List[Notice] = []
        progress: Optional[Progress] = None
        steps = 0  # lines that moved the work on
        for line in lines:
            before = self.reading.moves
            counter = self.reading.take(line, source, at)
            stated = self._stated(line.text, notices)
            if "progress" in self._patterns:
                progress = stated or progress
            elif counter is not None and counter.done > 0 and not counter.loading:
                progress = Progress(counter.done, counter.total)
            steps += self.reading.moves > before
            self._note_phase(line.text, bool(counter and not counter.loading), bool(stated), at, notices)
        if steps:
            self._count_steps(steps, at)
        if progress is not None:
            self.progressed = True
            notices.append(progress)
        return notices

    def _count_steps(self, steps: int, at: float) -> None:
        usual_s = self._pace.usual_s
        if self.again and self._started is not None:
            self._pace.moved_before(steps, at - self._started)
        else:
            self._pace.moved(at)
        if self._ready:
            self._vitals.moved(at, usual_s)

    def _stated(self, text: str, notices: List[Notice]) -> Optional[Progress]:
        """What the job's own patterns say of the line."""
        progress: Optional[Progress] = None
        for key, pattern in list(self._patterns.items()):
            try:
                with self._guard():
                    found = pattern.search(text)
            except TimeoutError:
                del self._patterns[key]
                notices.append(TooSlow(key, pattern.pattern))
                continue
            if not found:
                continue
            if key == "progress":
                progress = _progress_of(found)
                self._count_stated(progress)
            elif key == "done":
                notices.append(Done(text))
            elif not self._ready:
                self._become_ready(text, notices)
        return progress

    def _count_stated(self, progress: Progress) -> None:
        """The job's own counter moves the work on as a recognised one does."""
        self.reading.count_stated(progress.done)

    def _note_phase(self, text: str, counted: bool, stated: bool, at: float, notices: List[Notice]) -> None:
        if not self._said_loading and self.reading.loading:
            self._said_loading = True
            notices.append(Loading(text))
        if not self._ready and "ready" not in self._patterns and (counted or stated or _SERVING.search(text)):
            self._become_ready(text, notices)
        if self._ready and self.loading_s is None and self._started is not None:
            self.loading_s = max(0.0, at - self._started)

    def _become_ready(self, text: str, notices: List[Notice]) -> None:
        self._ready = True
        notices.append(Ready(text))

    # ── while it lives ──────────────────────────────────────────────────────────────────────────────────────────

    def _late(self, at: float) -> Optional[Incident]:
        limit = self.watch.ready_within_s
        if (
            limit is None
            or self._ready
            or self._started is None
            or at - self._started - self._skipped_s < limit
            or not self._first("late")
        ):
            return None
        return replace(_made("timeout", f"It was not ready within {limit:.0f} s (`ready_within`)."), phase="load")

    def _with_cause(self, found: Incident) -> Incident:
        """What a standstill may come from, where a log tells: a collective's timeout, a lost peer."""
        cause = verdict.root(self.reading) if found.cls == "stalled" else None
        return replace(found, evidence=[*found.evidence, cause.evidence]) if cause is not None else found

    def _mind_gap(self, at: float) -> None:
        """Time that nobody saw (the machine slept, we were stopped) is no time without a move."""
        gap = at - self._ticked if self._ticked is not None else 0.0
        if gap > GAP_S:
            self._skipped_s += gap
            self._pace.skip(gap, at)
            self._facts.skip(gap, at)
            self.reading.skip(gap, at)
        self._ticked = at

    def _fading(self) -> Optional[Incident]:
        """A finding about a job that goes on: a NaN loss, a GPU that reports faults."""
        clue = verdict.finding(self.reading)
        if clue is None or clue.scope == "thread" or not self._first(verdict.class_of(clue)):
            return None
        return verdict.describe(self.reading, clue, fatal=False)

    def _first(self, what: str) -> bool:
        if what in self._told:
            return False
        self._told.add(what)
        return True

    def _unexplained(self, exit: Exit) -> Incident:
        """Nothing in the logs says why: the exit is all there is."""
        if exit.exit_code == 0:
            return _made("unknown", "The service ended by itself with code 0, though nobody asked it to.")
        number = exit.signal if exit.signal is not None else (exit.exit_code or 0) - 128
        if exit.signal is not None or 0 < number <= 64:
            name = _signal_name(number)
            advice = f"It was ended by {name}, which gpuctl did not send; its log does not say why."
            if number == signal.SIGKILL:
                advice += (
                    " The kernel does so when the machine's or container's main memory runs out: see its kernel log."
                )
            return _made(
                "code_error" if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL) else "unknown",
                advice,
                f"ended by {name}",
            )
        if exit.exit_code in (126, 127):
            return _made(
                "code_error",
                "The shell could not find or start a command (exit code {}).".format(exit.exit_code),
                f"exit code {exit.exit_code}",
            )
        return _made(
            "unknown",
            f"It ended with exit code {exit.exit_code}; its log does not say why.",
            f"exit code {exit.exit_code}",
        )


def _progress_of(found: "re.Match[str]") -> Progress:
    groups = found.groupdict()
    return Progress(_count(groups.get("done")) or 0.0, _count(groups.get("total")))


def _count(text: Optional[str]) -> Optional[float]:
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _made(cls: str, advice: str, evidence: str = "") -> Incident:
    """An incident that no line of a log tells."""
    lines = [Evidence(cls, evidence, source="exit")] if evidence else []
    return Incident(cls, True, evidence=lines, advice=advice or advise(Incident(cls, True)))
