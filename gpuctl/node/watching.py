"""The supervisor's eyes: follows the attempt's logs, samples its GPUs, feeds the judge, journals what it notices.

Everything that the supervisor waits for goes through `look`, so that logs are read and samples taken meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal as signals
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Union

from gpuctl.node.attempt import Attempt
from gpuctl.node.clock import boottime
from gpuctl.node.company import Company
from gpuctl.node.folders import RunFolder, write_json
from gpuctl.node.follower import Follower, Mark, Truncated, standing
from gpuctl.node.history import Record
from gpuctl.node.processes import descriptor
from gpuctl.node.recording import RecordingJudge, peaks
from gpuctl.node.room import has_room
from gpuctl.node.telemetry import Telemetry
from gpuctl.node.tree_io import Tree
from gpuctl.node.waiter import Waiter
from gpuctl.node.witness import Witness, keep
from gpuctl.watchdog.judge import Done, Loading, Notice, Progress, Ready, TooSlow
from gpuctl.watchdog.policy import watch_of
from gpuctl.wire.incidents import Evidence, Exit, Incident
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.samples import Sample

SAMPLE_S = 1.0
PROGRESS_S = 10.0
PACE_S = 0.5  # between two looks at logs that grow all the time; an exit is seen at once
READ_S = 0.25  # of reading at a time
LAST_READ_S, LAST_BYTES = 10.0, 8 << 20  # after the exit: so long, then only the last of each file
ROOM_S, FULL_S = 5.0, 20.0
TREE_S = (1.0, 10.0)  # between two looks at the processes' I/O: a quarter of `watch.stall.for`, within these
SUSPECT_S = 2.0  # the same, while a look may keep an attempt from being ended
LINE_CHARACTERS = 200
MATCH_S = 0.2
STANDING = "standing.json"


class Eyes:
    """`telemetry` is None for a run without GPUs."""

    def __init__(self, run: RunFolder, record: Record, telemetry: Optional[Telemetry]) -> None:
        self.run = run
        self.record = record
        self.telemetry = telemetry
        self.waiter = Waiter(pace_s=PACE_S)
        self.waiter.watch(run.requests)
        self.last_sample: Optional[Sample] = None
        self.peak_mib: Dict[int, int] = {}  # by index, of this attempt
        self.loaded_mib: Optional[int] = None  # on the fullest, once it was ready
        self.done = False  # the job's own line for its end was seen
        self.company = Company("")
        self._judge: Optional[RecordingJudge] = None
        self._follower: Optional[Follower] = None
        self._uuids: List[str] = []
        self._witness: Optional[Witness] = None
        self._watched: Set[str] = set()
        self._behind = False  # the logs hold more than was read
        self._again = False  # they are read that an earlier supervisor has read
        self._next_sample = 0.0
        self._next_room = 0.0
        self._tree = Tree(None)
        self._tree_s, self._next_tree = TREE_S[1], 0.0
        self._full_since: Optional[float] = None
        self.no_room = False  # the disk that holds the run is full, and stays so
        self._last_progress = 0.0
        self._unwritten: Optional[Progress] = None
        self._job: Optional[int] = None  # a pidfd, until it has told of the job's end

    def open(
        self, attempt: Attempt, spec: RunSpec, workdir: str, globs: Sequence[str], uuids: List[str], *,
        witness: Witness, company: Company,
    ) -> None:  # fmt: skip
        """Follows this attempt from now on. What its log already holds is read again, silently: a new supervisor
        must know what the old one knew, and journal none of it twice."""
        watch = watch_of(spec)
        started = self._started(attempt)
        self._judge = RecordingJudge(attempt.folder.path, watch, type=spec.type, started=started, guard=time_limit)
        self._follower = Follower()
        self._follower.add(attempt.folder.log, "log")
        self._follower.add_globs(attempt.folder.path, ("**/*.log",))
        if globs:
            self._follower.add_globs(workdir, globs, read_standing(attempt))
        self._uuids = uuids
        self._witness, self.company = witness, company
        self._tree = Tree(attempt.keeper, attempt.job)
        self._tree_s = min(max(watch.stall.for_s / 4, TREE_S[0]), TREE_S[1]) if watch.stall is not None else TREE_S[1]
        self.peak_mib, self.loaded_mib, self.done = peaks(attempt.folder.path), self.record.loaded_mib, False
        self._unwritten, self._last_progress = None, 0.0
        self._watch(attempt.folder.path)  # its log grows there
        self._job = descriptor(attempt.job) if attempt.job is not None else None
        if self._job is not None:
            self.waiter.add_fd(self._job)
        if self.record.life.attempt == attempt.number and self.record.life.state in ("loading", "running", "cleaning"):
            self._read_again(spec)

    def _started(self, attempt: Attempt) -> Optional[float]:
        """When this attempt did: its time is not a new supervisor's."""
        if self.record.started is None or self.record.life.attempt != attempt.number:
            return None
        return min(float(self.record.started["mono_s"]), boottime())

    def _read_again(self, spec: RunSpec) -> None:
        """What another supervisor has read. What it told of is not told again; what it asked an end for may not have
        been carried out, so that is."""
        assert self._judge is not None and self._follower is not None
        quietly = self.record.attempts[-1].progressed or self.record.life.state != "loading"
        self._again = self._judge.again = True
        self._read(quietly=quietly, within_s=LAST_READ_S)
        if self._behind:
            self._follower.leap(LAST_BYTES)
            self._read(quietly=quietly, within_s=LAST_READ_S)
        self._again = self._judge.again = False
        self._judge.know(
            finding for finding in self.record.findings if not finding.fatal or spec.policy.get(finding.cls) == "alert"
        )

    def look(self, timeout_s: float) -> List[Incident]:
        """Waits for something to happen, at most so long; reads, samples, journals; answers confirmed incidents."""
        now = boottime()
        due = self._next_sample - now if self._judge is not None else timeout_s
        if self._job in self.waiter.wait(0.0 if self._behind else max(0.0, min(timeout_s, due))):
            self._forget_job()
        self._read()
        now = boottime()
        if self._judge is None:
            return []
        if now >= self._next_sample:
            self._next_sample = max(self._next_sample + SAMPLE_S, now + SAMPLE_S / 2)
            self._sample()
        if now >= self._next_room:
            self._next_room = now + ROOM_S
            self._look_at_room(now)
        if self._witness is not None:
            self._tell(self._witness.look(now))
        if now >= self._next_tree:
            self._next_tree = now + (SUSPECT_S if self._judge.suspects else self._tree_s)
            self._look_at_tree(now)
        incidents = [self.company.about(incident) for incident in self._judge.tick(now)]
        for recovered in self._judge.recovered():
            if self.record.life.state == "cleaning":
                continue  # what it prints while it is being ended is no recovery
            self.record.write("recovered", **recovered.to_event())
        return incidents

    def verdict(self, exit: Exit) -> Optional[Incident]:
        """What the judge says of an ended attempt, once the last of its logs is read."""
        assert self._judge is not None
        self._read(scan=True, within_s=LAST_READ_S)
        if self._behind:
            assert self._follower is not None
            for source, skipped in self._follower.leap(LAST_BYTES):
                self.record.write("note", text=f"{skipped} bytes of {source} were not read: it grew too fast")
            self._read(within_s=LAST_READ_S)
        self._flush_progress()
        if exit.exit_code != 0 and self._witness is not None:
            self._sample()  # an Xid that came with the end is in it
            self._tell(self._witness.at_exit(exit, boottime()))
        incident = self._judge.exited(exit, boottime())
        return self.company.about(incident) if incident is not None else None

    def ends(self) -> None:
        """The attempt will be ended for what was found."""
        if self._judge is not None:
            self._judge.ends(boottime())

    def close(self) -> None:
        """Stops following the attempt."""
        self._flush_progress()
        if self._witness is not None:
            self._witness.close()
            self._witness = None
        if self._follower is not None:
            self._follower.close()
        for path in self._watched:
            self.waiter.forget(path)
        self._watched.clear()
        self._judge = self._follower = None
        self._forget_job()

    def _forget_job(self) -> None:
        if self._job is not None:
            self.waiter.remove_fd(self._job)
            os.close(self._job)
            self._job = None

    def _sample(self) -> None:
        assert self._judge is not None
        if self.telemetry is None:
            return
        sample = self.telemetry.sample()
        devices = [device for device in sample.devices if device.uuid in self._uuids]
        for device in devices:
            used = device.memory_used_mib
            if used is not None:
                self.peak_mib[device.index] = max(used, self.peak_mib.get(device.index, 0))
        self.company.see(devices)
        self.last_sample = Sample(
            time=sample.time, mono_s=sample.mono_s, devices=devices, driver=sample.driver, error=sample.error,
            xids=sample.xids,
        )  # fmt: skip
        self._judge.sample(self.last_sample)
        if self._witness is not None:
            self._witness.know(devices)
            self._tell(self._witness.xids(sample.xids, sample.mono_s))

    def _tell(self, facts: Sequence[Evidence]) -> None:
        """What the machine says, to the judge; an Xid to the journal too."""
        assert self._judge is not None
        for fact in facts:
            self._judge.fact(fact)
            if fact.xid is not None and (fact.source == "NVML" or fact.text not in self.record.xids):
                about: Dict[str, Any] = {"class": fact.cls, "gpu": fact.gpu, "pid": fact.pid, "source": fact.source}
                self.record.write("xid", xid=fact.xid, **about, text=fact.text)

    def _look_at_room(self, now: float) -> None:
        """Full for a while: somebody may be making room, and the journal has a reserve of its own meanwhile."""
        if has_room(self.run.path):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        self.no_room = self._full_since is not None and now - self._full_since >= FULL_S

    def _look_at_tree(self, now: float) -> None:
        """Only where it is quiet or suspected of a standstill: else who prints is alive, and the walk costs time."""
        assert self._judge is not None
        if self._judge.quiet_s(now) < self._tree_s and not self._judge.suspects:
            self._tree.forget()
            return
        io = self._tree.look(now)
        if io is not None:
            self._judge.io(io)

    def _read(self, *, quietly: bool = False, scan: bool = False, within_s: float = READ_S) -> None:
        """What the logs hold that is new. Not all of it, where they grow faster than they can be judged: an exit or a
        request must not wait for that."""
        if self._follower is None or self._judge is None:
            return
        deadline = boottime() + within_s
        self._behind = True
        while boottime() < deadline:
            pieces = self._follower.read(scan=scan)
            scan = False
            for piece in pieces:
                if isinstance(piece, Truncated):
                    self.record.write("log_truncated", file=piece.source, lost_bytes=piece.lost_bytes)
                    self._judge.truncated(piece.source)
                    continue
                for notice in self._judge.feed(piece.source, piece.data, boottime()):
                    if isinstance(notice, Done) and not self.done:
                        self._sample()  # before a probe is ended: the peak that it was made for
                        self.done = True
                    if not quietly:
                        self._notice(notice)
            if not pieces:
                self._behind = False
                break
        for path in self._follower.paths:
            self._watch(path)

    def _watch(self, path: str) -> None:
        if path not in self._watched:
            self._watched.add(path)
            self.waiter.watch(path)

    def _notice(self, notice: Notice) -> None:
        if self.record.life.state == "cleaning":
            return  # what is read by now was written before the end
        if isinstance(notice, Progress):
            self._progress(notice)
        elif isinstance(notice, Ready):
            self._sample()
            if not self._again:  # what is in use now says nothing of then
                self.loaded_mib = max(self.peak_mib.values(), default=None)
            self.record.write("ready", line=notice.line[:LINE_CHARACTERS], loaded_mib=self.loaded_mib)
        elif isinstance(notice, TooSlow):
            self.record.write("note", text=f"watch.{notice.key} took too long on a line and is not used any more")
        elif isinstance(notice, Loading) and self.record.life.state == "starting":
            self.record.write("loading")

    def _progress(self, progress: Progress) -> None:
        now = boottime()
        self._unwritten = progress
        if self._last_progress == 0.0 or now - self._last_progress >= PROGRESS_S:
            self._last_progress = now
            self._flush_progress()

    def _flush_progress(self) -> None:
        if self._unwritten is not None:
            self.record.write("progress", done=_count(self._unwritten.done), total=_count(self._unwritten.total))
            self._unwritten = None


def _count(value: Optional[float]) -> Union[int, float, None]:
    """A whole number without its decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@contextlib.contextmanager
def time_limit(seconds: float = MATCH_S) -> Iterator[None]:
    """Raises TimeoutError in what takes longer: a user's regular expression can take for ever on an unlucky line."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    before = signals.signal(signals.SIGALRM, too_long)
    signals.setitimer(signals.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signals.setitimer(signals.ITIMER_REAL, 0)
        signals.signal(signals.SIGALRM, before)


def keep_standing(attempt_dir: str, workdir: str, globs: Sequence[str], *, machines: Sequence[str]) -> None:
    """Notes, before the attempt starts, where the job's own log files end and what the kernel has counted: what stood
    there is not this attempt's."""
    marks = standing(workdir, globs) if globs else {}
    keep(attempt_dir, machines)
    write_json(os.path.join(attempt_dir, STANDING), {path: mark.to_json() for path, mark in marks.items()})


def read_standing(attempt: Attempt) -> Dict[str, Mark]:
    try:
        with open(os.path.join(attempt.folder.path, STANDING), encoding="utf-8") as file:
            return {path: Mark.from_json(mark) for path, mark in json.load(file).items()}
    except FileNotFoundError:
        return {}
