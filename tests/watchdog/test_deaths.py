"""A thread or rank that died: whether the job goes on without it, on lives told second by second."""

from __future__ import annotations

import pytest

from gpuctl.wire.runspec import Watch
from tests.watchdog.test_judge import OOM, THREAD, TRACE
from tests.watchdog.test_vitals import CONTEXT, MATMUL, NO_STALL, PROGRESS, TINY, Life

STATED = Watch(progress=PROGRESS, stall=NO_STALL)
OFFLINE = "requests.exceptions.ConnectionError: the host is not reachable\n"
RANK = "".join(f"[rank3]: {line}\n" for line in (TRACE + OFFLINE).splitlines())
RANK_OOM = "".join(f"[rank3]: {line}\n" for line in (TRACE + OOM).splitlines())
DEATHS = {"thread": THREAD + OFFLINE, "thread-oom": THREAD + OOM, "rank": RANK, "rank-oom": RANK_OOM}

deaths = pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS.keys())


def _fatal(life: Life) -> list[str]:
    return [incident.cls for incident in life.incidents if incident.fatal]


def _told(life: Life) -> list[str]:
    return [incident.cls for incident in life.incidents if incident.cls not in ("stalled", "low_power")]


@deaths
@pytest.mark.parametrize("watch", [STATED, Watch(stall=NO_STALL)], ids=["stated", "seen"])
@pytest.mark.parametrize(
    "how",
    [
        {"watts": MATMUL},
        {"watts": TINY + 20},
        {"watts": CONTEXT, "written_bytes": 2_500_000_000},
        {"watts": CONTEXT, "read_bytes": 2_500_000_000},
    ],
    ids=["evaluates", "hardly-works", "saves", "loads"],
)
def test_a_job_that_works_in_silence_is_told_of_and_lives(death: str, watch: Watch, how: dict[str, float]) -> None:
    signs = {key: value for key, value in how.items() if key != "watts"}
    life = Life(watch).go(120, MATMUL, step_s=2).say(death.rstrip()).go(900, how["watts"], **signs)  # type: ignore[arg-type]
    assert _fatal(life) == []
    assert len(_told(life)) == 1
    life.go(300, MATMUL, step_s=2)
    assert _fatal(life) == [] and len(_told(life)) == 1


@deaths
@pytest.mark.parametrize("watts", [MATMUL, CONTEXT])
def test_a_service_goes_on_serving(death: str, watts: float) -> None:
    life = Life(Watch(), type="service").say("INFO:     Application startup complete.").say("step 1/9").say("step 2/9")
    life.say(death.rstrip()).go(600, watts, line=lambda second: '"GET /v1/models HTTP/1.1" 200 OK')
    life.go(600, watts)
    assert _fatal(life) == [], "whom nobody asks anything stands still, too"


@deaths
def test_a_task_that_goes_on_answering(death: str) -> None:
    life = Life(Watch()).go(20, CONTEXT, step_s=2).say(death.rstrip())
    life.go(600, CONTEXT, line=lambda second: '"POST /v1/completions HTTP/1.1" 200 OK')
    assert _fatal(life) == []


@pytest.mark.parametrize("death", [DEATHS["thread"], DEATHS["rank"]], ids=["thread", "rank"])
def test_another_cause_than_a_gpus_needs_silence(death: str) -> None:
    life = Life(STATED).go(120, MATMUL, step_s=2).say(death.rstrip())
    life.go(600, CONTEXT, line=lambda second: f"epoch 2: {second} images")
    assert _fatal(life) == []
    assert _fatal(life.go(70, CONTEXT)) != []


@pytest.mark.parametrize("death", [DEATHS["thread"], DEATHS["rank"]], ids=["thread", "rank"])
@pytest.mark.parametrize("unread", ["power", "I/O"])
def test_another_cause_than_a_gpus_needs_signs_that_can_be_read(death: str, unread: str) -> None:
    life = Life(STATED).go(120, MATMUL, step_s=2).say(death.rstrip())
    life.go(600, CONTEXT if unread == "I/O" else None, io=unread == "power")
    assert _fatal(life) == []
    assert len(_told(life)) == 1


@pytest.mark.parametrize("death", [DEATHS["thread-oom"], DEATHS["rank-oom"]], ids=["thread", "rank"])
@pytest.mark.parametrize("watch", [STATED, Watch(stall=NO_STALL)], ids=["stated", "seen"])
def test_a_gpus_failure_is_seen_through_what_the_others_print(death: str, watch: Watch) -> None:
    life = Life(watch).go(120, MATMUL, step_s=2).say(death.rstrip())
    life.go(75, CONTEXT, line=lambda second: "target: queue full, waiting for drafter")
    assert _fatal(life) == ["gpu_oom"]


@pytest.mark.parametrize("death", [DEATHS["thread-oom"], DEATHS["rank-oom"]], ids=["thread", "rank"])
@pytest.mark.parametrize("watch", [STATED, Watch(stall=NO_STALL)], ids=["stated", "seen"])
def test_what_is_printed_is_written_and_is_no_other_io(death: str, watch: Watch) -> None:
    chatter = "target: queue full, waiting for drafter, " * 500
    life = Life(watch).go(120, MATMUL, step_s=2).say(death.rstrip())
    life.go(75, CONTEXT, line=lambda _: chatter, written_bytes=5 * len(chatter))
    assert _fatal(life) == ["gpu_oom"]


def test_a_first_step_that_runs_out_of_memory_is_seen_where_the_job_file_names_its_progress() -> None:
    waiting = "target: queue full, waiting for drafter"
    life = Life(STATED).say("up").say((THREAD + OOM).rstrip()).go(20, MATMUL).go(60, CONTEXT, line=lambda _: waiting)
    assert [cls.startswith("gpu_oom") for cls in _fatal(life)] == [True]


@deaths
def test_while_the_job_loads_nothing_is_certain(death: str) -> None:
    watch = Watch(progress=PROGRESS, ready="model is up", stall=NO_STALL)
    assert _fatal(Life(watch).say("Loading model weights").say(death.rstrip()).go(900, CONTEXT)) == []


@deaths
def test_time_that_nobody_saw_kills_nobody(death: str) -> None:
    life = Life(STATED).go(120, MATMUL, step_s=2).say(death.rstrip())
    life.at += 7200
    assert _fatal(life.go(9, MATMUL).go(300, MATMUL, step_s=2)) == []
