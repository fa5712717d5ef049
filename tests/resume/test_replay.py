"""A recorded run through today's judge, and another policy."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuctl.watchdog.moments import Moment, thinned
from gpuctl.watchdog.replay import Recorded, replay
from gpuctl.wire.incidents import AttemptRecord, Exit
from gpuctl.wire.runspec import Finding, OnOom, Relaunches, Resume, RunSpec, Stop, Watch
from gpuctl.wire.samples import TreeIo
from tests.parts.node import TestNode
from tests.waiting import wait_until

TENSOR = "from gpuctl.simulation.cuda import Gpu; import sys; Gpu(0).allocate('x', int(sys.argv[1]) << 20)"
GIVING = OnOom(reduce=["mib"], max_relaunches=6)


def _replayed(sim: TestNode, **arguments: Any) -> dict[str, Any]:
    return sim.call("replay", **{"run": "job-1", **arguments})[-1]


def _out_of_memory(sim: TestNode) -> None:
    command = f'{sys.executable} -c "{TENSOR}" {{mib}}'
    sim.start(sim.job(command, gpus=1, params={"mib": 300000}, on_oom=GIVING))
    assert sim.wait_over().state == "succeeded", sim.log()


def test_by_the_same_rules_nothing_differs(sim: TestNode) -> None:
    _out_of_memory(sim)
    found = _replayed(sim)
    assert (found["run"], found["missing"]) == ("job-1", [])
    tried = [event["params"] for event in sim.events(type="attempt_started")]
    assert [attempt["params"] for attempt in found["attempts"]] == tried
    assert not any(attempt["differs"] for attempt in found["attempts"])
    first, *_, last = found["attempts"]
    assert (first["was"]["class"], first["was"]["params"]) == ("gpu_oom", tried[1])
    assert first["now"]["params"] == tried[1]
    assert "out of memory" in first["now"]["evidence"][0]["text"]
    assert last["now"]["state"] == "succeeded"


def test_another_policy_decides_otherwise(sim: TestNode) -> None:
    _out_of_memory(sim)
    before = sim.events()
    found = _replayed(sim, changes={"on_oom": {**GIVING.to_json(), "values": {"mib": [1234]}}})
    assert [attempt["differs"] for attempt in found["attempts"]][:1] == [True]
    assert found["attempts"][0]["now"]["params"] == {"mib": 1234}
    stopped = _replayed(sim, changes={"policy": {"gpu_oom": "stop"}})["attempts"][0]
    assert (stopped["now"]["action"], stopped["now"]["state"], stopped["differs"]) == ("stop", "failed", True)
    assert sim.events() == before, "nothing is written"


def test_a_copied_folder_is_as_good(sim: TestNode, tmp_path: Path) -> None:
    _out_of_memory(sim)
    expected = _replayed(sim)
    copy = tmp_path / "copy of it"
    shutil.copytree(sim.state_dir / "runs" / "job-1", copy)
    sim.call("remove", runs=["job-1"])
    assert _replayed(sim, run=None, folder=str(copy)) == expected
    assert sim.call("replay", folder=str(tmp_path))[-1]["error"]["code"] == 3
    assert sim.call("replay", run="job-1")[-1]["error"]["code"] == 3


def test_an_attempt_that_was_killed_is_not_judged_by_its_exit(sim: TestNode) -> None:
    sim.start(sim.job("sh -c 'echo step 1/10; sleep 600'", gpus=0))
    wait_until(lambda: sim.events(type="progress"))
    live = _replayed(sim)["attempts"][0]
    assert (live["now"]["class"], live["now"]["action"], live["differs"]) == (None, None, False)
    sim.ask("job-1", "kill")
    (attempt,) = _replayed(sim)["attempts"]
    assert (attempt["was"]["state"], attempt["was"]["asked"], attempt["differs"]) == ("killed", True, False)


def test_logs_that_the_job_wrote_itself(sim: TestNode) -> None:
    (sim.folder / "train.log").write_text("torch.OutOfMemoryError: of an earlier run\n")
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of"
    oom += " 95.59 GiB of which 3.05 GiB is free."
    (sim.folder / "job.sh").write_text(f"echo '{oom}' >>train.log; sleep 1.2; exit 1")
    sim.start(sim.job("sh job.sh", gpus=0, watch=Watch(logs=["*.log"])))
    sim.wait_over()
    (attempt,) = _replayed(sim)["attempts"]
    assert (attempt["was"]["class"], attempt["now"]["class"], attempt["differs"]) == ("gpu_oom", "gpu_oom", False)
    (sim.folder / "train.log").unlink()
    found = _replayed(sim)
    assert found["missing"] == ["train.log of attempt 1"]


def test_a_run_that_is_blocked_for_its_checkpoint_is_so_again(sim: TestNode) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of"
    oom += " 95.59 GiB of which 3.05 GiB is free."
    (sim.folder / "job.sh").write_text(f'echo 1 >1.pt; echo "{oom}"; exit 1')
    resume = Resume("*.pt", "--resume {latest}")
    sim.start(sim.job("sh job.sh {mib}", gpus=0, params={"mib": 8}, on_oom=GIVING, resume=resume))
    assert sim.wait_over().state == "blocked"
    assert sim.events(type="run_finished")[0]["resumes"] is True
    (attempt,) = _replayed(sim)["attempts"]
    assert (attempt["now"]["state"], attempt["differs"]) == ("blocked", False)


@pytest.mark.parametrize("fault", ["", "exit-seen", "exit-journaled", "cleaned"])
def test_what_an_attempt_left_behind_is_known_for_good(sim: TestNode, fault: str) -> None:
    if fault:
        sim.fault(fault)
    (sim.folder / "job.sh").write_text(
        f"mkfifo held; {sys.executable} -m gpuctl.simulation.hold --mib 3000 >held & read line <held; exit 0"
    )
    sim.start(sim.job("sh job.sh", gpus=1))
    life = sim.wait_over()
    assert (life.state, (life.incident or {})["class"]) == ("failed", "code_error")
    assert sim.events(type="attempt_exited")[0]["left_behind"] is True
    (attempt,) = _replayed(sim)["attempts"]
    assert (attempt["now"]["class"], attempt["differs"]) == ("code_error", False)


def test_what_was_known_then_is_what_the_replay_knows(sim: TestNode) -> None:
    """Of other runs, of its own attempts, of other code."""

    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *words], cwd=sim.folder, check=True, capture_output=True)

    git("init", "-q")
    for run in ("job-1", "job-2", "job-3"):
        (sim.folder / "code").write_text(run[:-1] + min(run[-1], "2"))
        git("add", "code")
        git("commit", "--allow-empty", "-qm", run)
        command = f'{sys.executable} -c "{TENSOR}" {{mib}}'
        spec = sim.job(command, run, gpus=1, params={"mib": 400_000}, on_oom=OnOom(reduce=["mib"]))
        sim.start(spec, force=True)
        assert sim.wait_over(run).state == "succeeded"
    assert len(sim.call("ledger")[0]["entries"]) >= 6
    for run in ("job-1", "job-2", "job-3"):
        found = _replayed(sim, run=run)["attempts"]
        assert not any(attempt["differs"] for attempt in found), (run, found)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"timeout_s": 2.0}, "timeout"),
        ({"watch": Watch(ready="never", ready_within_s=2.0)}, "timeout"),
    ],
)
def test_what_ended_a_silent_run_without_gpus_is_found_again(sim: TestNode, keys: dict[str, Any], found: str) -> None:
    sim.start(sim.job("sh -c 'echo step 1; echo step 2; exec sleep 600'", gpus=0, stop=Stop("TERM", 2.0), **keys))
    assert (sim.wait_over().incident or {})["class"] == found
    (attempt,) = _replayed(sim)["attempts"]
    assert (attempt["now"]["class"], attempt["differs"]) == (found, False)


# ── by hand: what the moments are for ───────────────────────────────────────────────────────────────────────────────


def _recorded(moments: list[Moment], log: bytes = b"", **some: Any) -> Recorded:
    record = AttemptRecord(1, {"bs": 8}, duration_s=some.pop("duration_s", None))
    keys = {"uuids": {"0": "GPU-0"}, "logs": {"log": io.BytesIO(log)}, "total_mib": 97887, **some}
    return Recorded(record, started_s=100.0, moments=moments, **keys)


def _spec(**some: Any) -> RunSpec:
    return RunSpec("job-1", "job", "sim", "true", params={"bs": 8}, **some)


def test_a_timeout_that_the_other_policy_sets() -> None:
    moments = [Moment(100.0 + at, gpus={"0": [90, 500, 9000, 700, 60]}) for at in range(60)]
    attempt = _recorded(moments, ended_s=160.0, exit=Exit(0))
    (told,) = replay(_spec(timeout_s=30.0), [attempt])
    assert (told["now"]["class"], told["now"]["after_s"], told["now"]["state"]) == ("timeout", 30.0, "failed")
    assert told["differs"]


def test_a_stall_that_another_watch_would_have_ended() -> None:
    """Ten minutes of steps, then an hour of a spinning collective at idle power, which a person ended."""
    lines = [b"step %d/9999\n" % at for at in range(600)]
    moments, size = [], 0
    for at in range(4200):
        power = 400 if at < 600 else 120
        read = {}
        if at < 600:
            size += len(lines[at])
            read = {"log": size}
        io = TreeIo(100.0 + at, 10.0, 0, 0, 10.0) if at >= 600 and at % 10 == 0 else None
        moments.append(Moment(100.0 + at, read=read, io=io, gpus={"0": [100, power, 90000, 700, 60]}))
    watch = Watch(progress=r"step (?P<done>\d+)/(?P<total>\d+)", stall=Finding(900.0, "relaunch"))
    for kept in (moments, thinned(moments, now=90_000.0)):
        attempt = _recorded(kept, b"".join(lines), ended_s=4300.0, exit=Exit(signal=15), ended_by_us=True, asked=True)
        (told,) = replay(_spec(watch=watch), [attempt])
        assert (told["now"]["class"], told["now"]["action"]) == ("stalled", "relaunch"), len(kept)
        assert 1500.0 <= told["now"]["after_s"] <= 1800.0
        assert told["differs"]


def test_a_budget_counts_over_recorded_attempts() -> None:
    lost = b"RuntimeError: NCCL communicator was aborted on rank 0. Original reason: watchdog timeout\n"
    attempts = [
        Recorded(
            AttemptRecord(number, {"bs": 8}, duration_s=5.0), 100.0 * number, 100.0 * number + 5, Exit(1, None, 5.0),
            logs={"log": io.BytesIO(lost)},
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    told = replay(
        _spec(policy={"nccl_timeout": Relaunches(1), "nccl_error": Relaunches(1), "unknown": "stop"}), attempts
    )
    assert [attempt["now"]["action"] for attempt in told] == ["relaunch", "stop", "stop"]
