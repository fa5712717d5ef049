"""The judge over an attempt's life: what it notices, what becomes certain while the job lives, what the exit means."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuctl.watchdog.judge import Done, Judge, Loading, Progress, Ready, TooSlow
from gpuctl.wire.incidents import Exit, Incident
from gpuctl.wire.runspec import Watch
from gpuctl.wire.samples import TreeIo

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.20 GiB. GPU 7 has a total capacity of 94.97 GiB"
    " of which 1.20 GiB is free. Including non-PyTorch memory, this process has 93.70 GiB memory in use. Of the"
    " allocated memory 90.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)
TRACE = 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 31, in step\n    loss.backward()\n'
THREAD = (
    "Exception in thread drafter-0:\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/threading.py", line 1073, in _bootstrap_inner\n    self.run()\n'
    '  File "/srv/job/drafter.py", line 44, in work\n    logits = self.head(hidden)\n'
)


def _steps(first: int, last: int) -> str:
    return "".join(f"step {n}/900 loss 2.{n}\n" for n in range(first, last + 1))


def _fed(text: str, watch: Watch | None = None, **options: str) -> Judge:
    judge = Judge(watch or Watch(), started=0.0, **options)  # type: ignore[arg-type]
    judge.feed("log", text.encode(), 1.0)
    return judge


def _failed(judge: Judge, code: int = 1) -> Incident:
    incident = judge.exited(Exit(exit_code=code), 9.0)
    assert incident is not None
    assert incident.fatal
    return incident


# ── what it notices ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_loading_ends_with_the_first_progress() -> None:
    judge = Judge(Watch(), started=100.0)
    first = judge.feed("log", b"Loading checkpoint shards:  50%|#### | 2/4 [00:04<00:04]\n", 103.0)
    assert [type(notice) for notice in first] == [Loading]
    assert judge.phase == "load"
    assert not judge.progressed
    notices = judge.feed("log", b"step 1/900 loss 2.0\nstep 2/900 loss 1.9\n", 160.0)
    assert notices == [Ready("step 1/900 loss 2.0"), Progress(2, 900)]
    assert (judge.loading_s, judge.phase, judge.progressed) == (60.0, "train", True)


def test_the_jobs_own_patterns() -> None:
    watch = Watch(ready="model is up", progress=r"batch (?P<done>\d+) of (?P<total>\d+)", done="all saved")
    judge = _fed(_steps(1, 3), watch)
    assert judge.loading_s is None
    notices = judge.feed("log", b"the model is up\nbatch 3 of 7\nbatch 4 of 7\nall saved\n", 5.0)
    assert notices == [Ready("the model is up"), Done("all saved"), Progress(4, 7)]
    assert judge.loading_s == 5.0


def test_a_ready_line_is_found_in_a_burst() -> None:
    judge = Judge(Watch(ready="model is up"), started=0.0)
    chatter = b"reading a shard\n" * 50_000
    assert judge.feed("log", chatter + b"model is up\n" + chatter, 3.0) == [Ready("model is up")]


def test_a_service_is_ready_when_it_serves() -> None:
    judge = _fed("INFO:     Application startup complete.\n", type="service")
    assert judge.phase == "infer"


def test_a_pattern_that_takes_too_long_is_given_up() -> None:
    @contextmanager
    def guard() -> Iterator[None]:
        raise TimeoutError
        yield

    judge = Judge(Watch(progress="(a+)+$"), started=0.0, guard=guard)
    assert judge.feed("log", b"aaaa\nbbbb\n", 1.0) == [TooSlow("progress", "(a+)+$")]
    assert judge.feed("log", b"aaaa\n", 2.0) == []


# ── how it ended ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_out_of_memory_in_the_first_step_without_any_hint_of_a_phase() -> None:
    incident = _failed(_fed(TRACE + OOM))
    assert (incident.cls, incident.gpu, incident.phase) == ("gpu_oom", 7, "train")
    assert incident.requested_bytes == round(12.2 * (1 << 30))
    assert incident.evidence[0].frame == "/srv/job/train.py:31"
    assert "12.2 GiB" in incident.advice


def test_what_was_caught_and_retried_is_no_failure() -> None:
    judge = _fed(_steps(1, 3) + TRACE + OOM + "halving\n" + _steps(3, 9))
    assert judge.exited(Exit(exit_code=0), 9.0) is None


def test_an_old_caught_failure_is_not_what_a_later_one_is_put_down_to() -> None:
    judge = _fed(_steps(1, 3) + TRACE + OOM + "halving\n" + _steps(3, 9) + TRACE + "KeyError: 'x'\n")
    assert _failed(judge).cls == "code_error"


def test_the_root_comes_before_the_cascade() -> None:
    others = "".join(
        f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/srv/job/train.py", line 9, in step\n'
        f"[rank{rank}]: RuntimeError: [pair.cc:547] Connection closed by peer [127.0.0.1]:14752\n"
        for rank in (0, 1, 3)
    )
    root = "".join(f"[rank2]: {line}\n" for line in (TRACE + OOM).splitlines())
    summary = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  rank : 2 (local_rank: 2)\n"
    incident = _failed(_fed(_steps(1, 2) + root + others + summary))
    assert (incident.cls, incident.evidence[0].rank) == ("gpu_oom", 2)


def test_evidence_in_a_file_that_the_job_writes_itself() -> None:
    judge = _fed("started\n")
    judge.feed("ranks/2.log", (TRACE + OOM).encode(), 2.0)
    incident = _failed(judge)
    assert (incident.cls, incident.evidence[0].source) == ("gpu_oom", "ranks/2.log")


def test_the_last_line_may_lack_its_end() -> None:
    assert _failed(_fed(TRACE + OOM.rstrip())).cls == "gpu_oom"


@pytest.mark.parametrize(
    ("exit", "cls", "word"),
    [
        (Exit(exit_code=3), "unknown", "exit code 3"),
        (Exit(exit_code=127), "code_error", "find"),
        (Exit(signal=signal.SIGKILL), "unknown", "main memory"),
        (Exit(exit_code=137), "unknown", "SIGKILL"),
        (Exit(signal=signal.SIGSEGV), "code_error", "SIGSEGV"),
        (Exit(exit_code=0, left_behind=True), "code_error", "background"),
    ],
)
def test_an_exit_that_no_log_explains(exit: Exit, cls: str, word: str) -> None:
    incident = _fed("hello\n").exited(exit, 2.0)
    assert incident is not None
    assert (incident.cls, incident.fatal) == (cls, True)
    assert word in incident.advice


def test_no_incident_where_there_is_nothing_to_judge() -> None:
    assert _fed("hello\n").exited(Exit(exit_code=0), 2.0) is None
    assert _fed(OOM).exited(Exit(exit_code=1, asked=True), 2.0) is None
    assert _fed(OOM).exited(Exit(), 2.0) is None, "an exit that can't be known is never guessed"


def test_a_services_unasked_exit_is_a_failure() -> None:
    incident = _fed("Uvicorn running on http://0.0.0.0:8000\n", type="service").exited(Exit(exit_code=0), 2.0)
    assert incident is not None
    assert incident.cls == "unknown"


# ── while it lives ──────────────────────────────────────────────────────────────────────────────────────────────────


def _with_dead_thread(watch: Watch | None = None) -> Judge:
    judge = Judge(watch or Watch(), started=0.0)
    for n in range(1, 6):
        judge.feed("log", f"step {n}/900 loss 1.0\n".encode(), float(n))
    judge.feed("log", (THREAD + OOM).encode(), 6.0)
    return judge


def _looked(judge: Judge, first: int, last: int) -> list[tuple[int, Incident]]:
    """What it finds when, looked at every second; its processes neither read, write nor compute."""
    found: list[tuple[int, Incident]] = []
    for at in range(first, last + 1):
        if at % 2 == 0:
            judge.io(TreeIo(float(at), 2.0, 300, 0, 0.0))
        found += [(at, incident) for incident in judge.tick(float(at))]
    return found


def test_a_dead_thread_is_certain_once_the_progress_stops() -> None:
    ((at, incident),) = _looked(_with_dead_thread(), 6, 60)
    assert (at, incident.cls, incident.fatal, incident.gpu) == (16, "gpu_oom", True, 7)
    assert incident.evidence[0].thread == "drafter-0"


def test_a_dead_thread_is_certain_later_where_nobody_sees_its_io() -> None:
    judge = _with_dead_thread()
    assert [at for at in range(6, 90) if judge.tick(float(at))] == [46]


def test_a_dead_thread_beside_work_that_goes_on_is_an_alert() -> None:
    judge = _with_dead_thread()
    for n in range(6, 40):
        judge.feed("log", f"step {n}/900 loss 1.0\n".encode(), float(n) + 1)
    (incident,) = judge.tick(60.0)
    assert (incident.cls, incident.fatal) == ("gpu_oom", False)


def test_work_that_drains_a_dead_threads_queue_and_then_stops() -> None:
    judge = _with_dead_thread()
    for n in range(6, 12):
        judge.feed("log", f"step {n}/900 loss 1.0\n".encode(), float(n) + 1)
    ((at, incident),) = _looked(judge, 13, 60)
    assert (at, incident.cls, incident.fatal) == (42, "gpu_oom", True)


def test_ranks_a_step_apart_do_not_move_the_work() -> None:
    back_and_forth = "step 4/900 loss 1.0\nstep 5/900 loss 1.0\n" * 9
    assert _failed(_fed(_steps(1, 5) + TRACE + OOM + back_and_forth)).cls == "gpu_oom"


def test_many_old_troubles_do_not_hide_the_last_one() -> None:
    noisy = "".join(f"step {n}/9000 loss 1.0\nNCCL WARN call failed: connection closed\n" for n in range(1, 2000))
    incident = _failed(_fed(noisy + TRACE + OOM))
    assert incident.cls == "gpu_oom"


def test_a_slow_job_is_given_three_of_its_intervals() -> None:
    judge = Judge(Watch(), started=0.0)
    for n in range(1, 6):
        judge.feed("log", f"step {n}/900 loss 1.0\n".encode(), 60.0 * n)
    judge.feed("log", (THREAD + OOM).encode(), 301.0)
    ((at, incident),) = _looked(judge, 301, 600)
    assert (at, incident.fatal) == (481, True)


def test_without_any_progress_seen_a_dead_thread_is_only_told() -> None:
    for watch in (Watch(), Watch(ready="model is up", progress=r"n=(?P<done>\d+)")):
        ((_, incident),) = _looked(_fed("up\n" + THREAD + OOM, watch), 1, 300)
        assert not incident.fatal
    named = Watch(progress=r"n=(?P<done>\d+)")
    ((_, incident),) = _looked(_fed("up\n" + THREAD + OOM, named), 1, 300)
    assert incident.fatal, "the job has one kind of progress, and its first step ran out of memory"
    ((_, incident),) = _looked(_fed("up\n" + THREAD + "OSError: offline\n", named), 1, 300)
    assert not incident.fatal, "who loads makes no progress yet"


def test_a_thread_whose_cause_is_not_known() -> None:
    judge = Judge(Watch(), started=0.0)
    judge.feed("log", (_steps(1, 5) + THREAD + "ValueError: bad shard\n").encode(), 1.0)
    ((at, incident),) = _looked(judge, 1, 300)
    assert (at, incident.cls, incident.fatal) == (61, "thread_died", True)


def _with_dead_rank(cause: str) -> Judge:
    judge = Judge(Watch(), started=0.0)
    for n in range(1, 6):
        judge.feed("log", f"step {n}/900 loss 1.0\n".encode(), float(n))
    judge.feed("log", "".join(f"[rank3]: {line}\n" for line in cause.splitlines()).encode(), 6.0)
    return judge


def test_a_rank_that_raised_while_the_others_wait() -> None:
    ((at, incident),) = _looked(_with_dead_rank(TRACE + OOM), 6, 300)
    assert (at, incident.cls, incident.fatal, incident.evidence[0].rank) == (36, "gpu_oom", True, 3)


@pytest.mark.parametrize("level", ["WARNING", "INFO"])
def test_a_ranks_traceback_that_was_logged_as_no_error_is_no_death(level: str) -> None:
    logged = f"{level}:uploader:could not upload the metrics\n{TRACE}ConnectionError: offline\n"
    assert _looked(_with_dead_rank(logged), 6, 300) == []
    ((_, incident),) = _looked(_with_dead_rank(f"{level}:train:step 5/900\n{TRACE}{OOM}"), 6, 300)
    assert incident.fatal, "its last step is no message about the traceback"


def test_ready_within() -> None:
    judge = Judge(Watch(ready="model is up", ready_within_s=30.0), started=0.0)
    assert judge.tick(29.0) == []
    (incident,) = judge.tick(31.0)
    assert (incident.cls, incident.fatal) == ("timeout", True)
    assert judge.tick(40.0) == []


def test_a_finding_is_told_once_and_ends_nothing() -> None:
    judge = _fed(_steps(1, 3) + "".join(f"step {n}/900 loss nan\n" for n in range(4, 8)))
    (incident,) = judge.tick(2.0)
    assert (incident.cls, incident.fatal) == ("nan_loss", False)
    assert judge.tick(3.0) == []


def test_a_truncated_file_starts_anew() -> None:
    judge = _fed("half of a li")
    judge.truncated("log")
    judge.feed("log", (TRACE + OOM).encode(), 2.0)
    assert _failed(judge).cls == "gpu_oom"
