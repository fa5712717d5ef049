"""What a job's logs have said so far: every line that looked like trouble, and what happened since.

A line is evidence, not a verdict: each becomes a `Clue` that remembers how far the job was then. A job that has moved
on since has dealt with it. `gpuctl.watchdog.verdict` decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Dict, Iterator, List, Optional, Sequence

from gpuctl.watchdog import signatures
from gpuctl.watchdog.gpu_memory import held_by_others, with_numbers
from gpuctl.watchdog.lines import Line, LineReader
from gpuctl.watchdog.progress import Counter, read_counter, says_loading
from gpuctl.watchdog.signatures import Signature, Weight
from gpuctl.watchdog.tracebacks import Raised, Tracebacks
from gpuctl.wire.incidents import Evidence

MOVED_ON = 2  # moves of counters that show that the work goes on: a bar's last redrawing alone is one
_CONTINUED = 8  # lines that may continue a message: wrapped ones, tables under it
_TRACEBACK = 60  # lines between "this request failed" and what its traceback ends in
_TOLD_IN = 12  # clues that one trouble makes
_SHOWN = 1024
_MANY = 500  # clues kept: the first ones that are still open hold the root
_COUNTERS = 1000  # counters told apart

_MEMORY = {"gpu_oom", "gpu_oom_at_load", "kv_cache_too_small"}

_RANK_DEATH = re.compile(r"\brank[ :]+(\d+)", re.IGNORECASE)
_NCCL_GPU = re.compile(r"^\S+:\d+:\d+ \[(\d+)\] ")
_REQUEST = re.compile(
    r"exception during processing|in asgi application|error completing request"
    r"|(?:processing|handling|serving) (?:the )?(?:request|prompt|query)|request \S+ (?:failed|aborted)",
    re.IGNORECASE,
)
_SERVED = re.compile(
    r"\bprompt executed in\b|^got prompt|\b(?:GET|POST) .{0,120}\b200\b|\| 200 \|.{0,80}\b(?:GET|POST) "
    r"|\bfinished request\b",
    re.IGNORECASE,
)
_REJECTED = re.compile(r"\b(?:GET|POST) .{0,120}[\" ]4\d\d\b|\| 4\d\d \|.{0,80}\b(?:GET|POST) ")
_ANSWERED = re.compile(r"POST|rompt|inished")  # health checks are answered by a front end whose engine is dead, too
_REFUSED = re.compile(r"\b(?:GET|POST) .{0,120}[\" ]500\b|\| 500 \|.{0,80}\b(?:GET|POST) ")
_READY = re.compile(
    r"application startup complete|uvicorn running on|\bserver (?:is )?(?:listening|ready)|server is fired up",
    re.IGNORECASE,
)
_BARE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:\([^)]{0,40}\))?: \S")
_ENDED_WELL = re.compile(r"\bexit(?:ed)?\]?(?: with)?(?: code| status)?[ :=]{1,2}0\b", re.IGNORECASE)
_FENCE = re.compile(r"^[-=*#~]{3,} ?(.{3,60}?) ?[-=*#~]{3,}$")
_FENCED = re.compile(
    r"\b(?:sample|tail|excerpt|previous|last attempt|attempt \d+|generated|completion|prompt|output of|log of)\b",
    re.IGNORECASE,
)
_FINITE = re.compile(r"\b(?:\w*loss|grad[_ ]?norm)['\"]?\s{0,3}[=:|]?\s{0,3}['\"]?-?\d", re.IGNORECASE)
_LOAD_CALL = re.compile(
    r"from_pretrained|load_state_dict|load_model|load_weights?\b|load_checkpoint|load_single_module"
    r"|initialize_model|create_weights|model_loader|\binit_params?\b|\binit_fn\b"
    r"|_init_param|\bFSDP\(|fully_shard|DistributedDataParallel\(|\bDDP\(|deepspeed\.initialize"
    r"|set_module_tensor|dispatch_model|from_single_file|from_config"
    r"|(?:torch|paddle|safetensors\.torch)\.load|\bmodel\.(?:to|cuda|half)\(|_move_model_to_device"
    r"|module\.py (?:convert|_apply)\b"
    r"|materialize|_cuda_init|_cuda_setDevice|set_device\(|jax\.devices|initialize backend"
    r"|load_tensors|llama_model_load|llama_(?:init_from|new_context)|init_from_(?:gpt_)?params|loadEngine|deserialize"
    r"|\bfailed to load\b|unable to (?:load|create)\b|_model_load",
    re.IGNORECASE,
)
_MADE = re.compile(r" __init__(?:\n|$)")
_WARM_CALL = re.compile(r"profile_run|_dummy_|warm_?up|capture_model|determine_num_available", re.IGNORECASE)
_TRAIN_CALL = re.compile(
    r"backward|train(?:ing)?_step|optimizer\.step|compute_loss|\btrain|trainer|criterion|\bfit\b", re.IGNORECASE
)
_INFER_CALL = re.compile(
    r"generate|decode|infer|predict|sampl|execute_model|evaluat|encode|extract|serve|convert", re.IGNORECASE
)


@dataclass(eq=False)
class Clue:
    """One line that looked like trouble, and what is known about it."""

    evidence: Evidence
    weight: Weight
    moves: int  # of the job's counters until then
    at: float
    said: Optional[Signature] = None  # None: an exception that no signature knows
    phase: str = "unknown"
    scope: str = "process"  # process | thread | request | finding
    hint: bool = False  # handled, quoted, or below ERROR: it counts only for what fails at once
    served: int = 0  # requests served until then
    answered: int = 0
    lines: int = 0  # read until then, with the traceback
    text: str = ""  # with what continues it
    alone: bool = True  # raised outside a traceback
    logged: bool = False  # its traceback follows a line below ERROR: somebody caught it
    bare: bool = False  # an exception's last line alone, of a kind that no signature knows


@dataclass
class Reading:
    """All followed files of one attempt together; one `Tracebacks` per file is kept inside."""

    clues: List[Clue] = field(default_factory=list)
    moves: int = 0
    served: int = 0
    answered: int = 0  # of them, those that were work
    lines: int = 0
    ended_well: bool = False
    counter: Optional[Counter] = None  # the last one of the work itself
    loading: bool = False  # a loading line or bar was the last sign of where it is
    nans: int = 0  # metric lines in a row that show one
    _counters: Dict[str, float] = field(default_factory=dict)
    _tracebacks: Dict[str, Tracebacks] = field(default_factory=dict)
    _continued: Optional[Clue] = None
    _continued_for: int = 0
    _fence: int = 0
    _request: int = -99  # the line that said that a request failed

    def take(self, line: Line, source: str, at: float) -> Optional[Counter]:
        """Read one line. Returns its counter, if it has one."""
        self.lines += 1
        text = line.text
        counter = self._count(text)
        fence = _FENCE.match(text)
        if fence:
            self._fence = 200 if _FENCED.search(fence.group(1)) and not fence.group(1).lower().startswith("end") else 0
        self._fence -= self._fence > 0
        tracebacks = self._tracebacks.setdefault(source, Tracebacks())
        raised = tracebacks.take(line)
        if tracebacks.quoting:
            self._note_calls(tracebacks.calls(line.rank))
            return counter
        found = signatures.find(text)
        if ("equest" in text or "ing" in text or "ASGI" in text) and _REQUEST.search(text):
            self._request = self.lines
        if found or raised:
            self._add(line, source, at, found, raised)
        elif ("Error" in text or "Exception" in text) and self._is_bare(line):
            self._add(line, source, at, None, None)
        else:
            self._follow(text)
        return counter

    def _is_bare(self, line: Line) -> bool:
        """An exception's last line that no traceback precedes: it counts if nothing comes after it."""
        low = line.level in ("debug", "info", "warning") or line.quoted or self._fence > 0
        return not low and bool(_BARE.match(line.text)) and not signatures.says_handled(line.text)

    def _count(self, text: str) -> Optional[Counter]:
        if self.nans and _FINITE.search(text) and "nan" not in text.lower():
            self.nans = 0
        counter = read_counter(text)
        if counter is None:
            self.loading = self.loading or (self.counter is None and says_loading(text))
            return None
        fresh = counter.key not in self._counters
        self._move(counter.key, counter.done)
        self.moves += fresh and counter.total is not None and counter.done == counter.total > 1
        if counter.loading:
            self.loading = self.counter is None and counter.done != counter.total
        else:
            self.counter, self.loading = counter, False
        return counter

    def count_stated(self, done: float) -> None:
        """The job's own progress line, which its file describes."""
        if self._move("stated", done):
            self.counter, self.loading = Counter("stated", done, None, False), False

    def skip(self, gap_s: float, at: float) -> None:
        """Nobody looked for so long: what was told before is no older for it."""
        for clue in self.clues:
            clue.at = min(clue.at + gap_s, at)

    def _move(self, key: str, done: float) -> bool:
        """Has the work moved? Ranks that print the same counter a step apart do not move it back and forth; a counter
        that falls to half has begun anew."""
        if len(self._counters) >= _COUNTERS:
            self._counters.clear()
        highest = self._counters.get(key)
        if highest is not None and highest / 2 < done <= highest:
            return False
        self._counters[key] = done
        if highest is None and done <= 0:
            return False
        self.moves += 1
        return True

    def _add(self, line: Line, source: str, at: float, found: Optional[Signature], raised: Optional[Raised]) -> None:
        if found is None and raised is not None and raised.text.startswith(("KeyboardInterrupt", "SystemExit")):
            return
        cls = found.cls if found else "code_error"
        if found and found.scope == "finding":
            self.nans += 1
        evidence = Evidence(
            cls, line.text[:_SHOWN], line.number, source, rank=_rank(line), thread=raised.thread if raised else None
        )
        gpu = _NCCL_GPU.match(line.text)
        if gpu:
            evidence = replace(evidence, gpu=int(gpu.group(1)))
        evidence = with_numbers(replace(evidence, frame=raised.frame if raised else None), line.text)
        clue = Clue(
            evidence,
            found.weight if found else Weight.CONSEQUENCE,
            self.moves,
            at,
            found,
            served=self.served,
            answered=self.answered,
            lines=self.lines,
            text=line.text,
            alone=raised is None,
            bare=raised is None and found is None,
        )
        clue.scope = "thread" if evidence.thread else found.scope if found else "process"
        if self.lines - self._request <= _TRACEBACK and clue.weight > Weight.LAUNCHER:
            clue.scope = "request"
        low = line.level in ("debug", "info", "warning") and raised is None and not (found and found.bold)
        clue.hint = low or line.quoted or self._fence > 0 or (raised is None and signatures.says_handled(line.text))
        clue.hint = clue.hint or clue.bare or bool(raised and raised.ignored)
        clue.logged = raised is not None and raised.logged
        clue.phase = self._phase(clue, raised.calls if raised else ())
        if self._continued:
            self._place(clue.phase, None if raised else cls)
        self._keep(clue)
        if not (clue.bare and self._continued):
            self._continued, self._continued_for = clue, _CONTINUED

    def _recent(self) -> Iterator[Clue]:
        """What belongs to the trouble that is being told, newest first."""
        for clue in reversed(self.clues[-_TOLD_IN:]):
            if self.lines - clue.lines > _CONTINUED:
                return
            yield clue

    def _place(self, phase: str, cls: Optional[str] = None) -> None:
        """The same trouble, told again by who knows where it happened."""
        for clue in self._recent():
            same = cls is None or clue.evidence.cls == cls or {clue.evidence.cls, cls} <= _MEMORY
            if clue.phase == "unknown" and same:
                clue.phase = phase

    def _deal_with(self, clue: Clue) -> None:
        """The program says that it copes with what it just told."""
        for other in self._recent():
            if other is clue or (other.alone and other.evidence.cls == clue.evidence.cls):
                other.hint, other.bare = True, False

    def _keep(self, clue: Clue) -> None:
        """Where there are too many, those that the job has moved on from make room; of open ones the first stay."""
        if len(self.clues) >= _MANY:
            self.clues = [kept for kept in self.clues if kept.scope != "process" or self.moves - kept.moves < MOVED_ON]
            del self.clues[_MANY - 1 :]
        self.clues.append(clue)

    def _follow(self, text: str) -> None:
        """A line without trouble of its own: it may continue the last message, handle it, or show that life goes on."""
        if _SERVED.search(text):
            self.served += 1
            self.answered += bool(_ANSWERED.search(text))
        elif _REFUSED.search(text):
            self._refuse()
        elif _REJECTED.search(text):
            self._refuse(wrong=True)
        if _ENDED_WELL.search(text):
            self.ended_well = True
        if _READY.search(text):
            self._come_up()
        clue = self._continued
        if clue is None:
            return
        self._continued_for -= 1
        if self._continued_for <= 0 or read_counter(text):
            self._continued = None
            return
        if signatures.says_handled(text) and clue.weight is not Weight.LAUNCHER:
            self._deal_with(clue)
        if clue.phase == "unknown" and self.counter is None and _LOAD_CALL.search(text):
            self._place("load", clue.evidence.cls)
        clue.text = f"{clue.text} {text}"[: 4 * _SHOWN]
        clue.evidence = with_numbers(clue.evidence, clue.text)
        if clue.scope != "thread" and not clue.bare:  # after a dead thread's traceback it is the rest going on
            clue.lines = self.lines

    def _refuse(self, wrong: bool = False) -> None:
        """A server answers that it could not, or that what it was asked is `wrong`: it told of that request before."""
        for clue in self.clues[-_TOLD_IN:]:
            near = clue.weight > Weight.LAUNCHER and self.lines - clue.lines <= _TRACEBACK
            if near and clue.scope in ("process", "request"):
                clue.scope = "request"
                clue.hint = clue.hint or (wrong and clue.evidence.cls == "code_error")

    def _come_up(self) -> None:
        """A server that is ready has dealt with what went wrong while it started."""
        for clue in self.clues:
            if clue.scope == "process":
                clue.hint, clue.bare = True, False

    def _note_calls(self, calls: Sequence[str]) -> None:
        """A traceback that follows its message at once (`log.exception`) shows where that happened."""
        clue = self._continued
        if clue is None or not clue.alone or not calls:
            return
        clue.phase = _phase_of(calls) or clue.phase
        clue.lines = self.lines

    def _phase(self, clue: Clue, calls: Sequence[str]) -> str:
        if clue.said and clue.said.phase:
            return clue.said.phase
        if _LOAD_CALL.search(clue.text) and self.counter is None:
            return "load"
        phase = _phase_of(calls)
        if phase == "load" and self.counter is not None:
            phase = None  # loading again while the work goes on: what it adds to may well be the batch's
        if phase:
            return phase
        if self.counter is not None:
            return "train"
        if self.loading or (held_by_others(clue.evidence) and not clue.evidence.allocated_bytes):
            return "load"
        return "unknown"


def _phase_of(calls: Sequence[str]) -> Optional[str]:
    """The innermost call that says what the program was at."""
    for call in reversed(calls):
        for phase, pattern in (
            ("warm", _WARM_CALL),
            ("load", _LOAD_CALL),
            ("train", _TRAIN_CALL),
            ("infer", _INFER_CALL),
        ):
            if pattern.search(call):
                return phase
    return "load" if any(_MADE.search(call) for call in calls) else None


def _rank(line: Line) -> Optional[int]:
    if line.rank is not None:
        return line.rank
    found = _RANK_DEATH.search(line.text[:200])
    return int(found.group(1)) if found else None


def matters(text: str) -> bool:
    """Is the line worth reading with its surroundings? For `LineReader`, which asks it of lines that hold a stem."""
    return "Traceback" in text or signatures.find(text) is not None


def line_reader() -> LineReader:
    return LineReader(signatures.STEMS, matters)
