"""A run goes on from its checkpoints, and its outputs are set aside, on a real node with simulated GPUs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuctl.node import resuming
from gpuctl.node.history import Record
from gpuctl.node.resuming import spans
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import OnOom, Outputs, Relaunches, Resume, RunSpec
from tests.parts.node import TestNode, node
from tests.parts.pythons import pythons
from tests.waiting import wait_until

RESUME = Resume("ckpt/*.pt", "--resume {latest}")
LOST = "echo 'RuntimeError: NCCL communicator was aborted on rank 0. Original reason: watchdog timeout'; exit 1"


def _job(sim: TestNode, script: str, **keys: Any) -> RunSpec:
    """A shell script that finds the arguments that were appended in "$@"."""
    path = sim.folder / "job.sh"
    path.write_text(script)
    (sim.folder / "ckpt").mkdir(exist_ok=True)
    keys = {"gpus": 0, "resume": RESUME, "policy": {"unknown": Relaunches(3, 0.0)}, **keys}
    return sim.job("sh job.sh\n", **keys)


def _started(sim: TestNode) -> list[str | None]:
    return [event.get("resumed_from") for event in sim.events(type="attempt_started")]


def test_the_next_attempt_goes_on_from_the_newest_checkpoint(sim: TestNode) -> None:
    (sim.folder / "ckpt").mkdir()
    (sim.folder / "ckpt/from-before.pt").write_text("x")
    os.utime(sim.folder / "ckpt/from-before.pt", (1e9, 1e9))
    sim.start(_job(sim, 'echo "args: $*"; [ $# = 0 ] || exit 0; echo 1 >ckpt/1.pt; echo 2 >ckpt/2.pt.tmp; exit 1'))
    assert sim.wait_over().state == "succeeded"
    latest = str(sim.folder / "ckpt/1.pt")
    assert _started(sim) == [None, latest]
    assert sim.log(attempt=1) == "args: \n"
    assert sim.log(attempt=2) == f"args: --resume {latest}\n"


def test_an_older_one_only_where_the_launch_says_so(sim: TestNode) -> None:
    spec = _job(sim, 'echo "args: $*"', resume_older=True)
    (sim.folder / "ckpt/from-before.pt").write_text("x")
    os.utime(sim.folder / "ckpt/from-before.pt", (1e9, 1e9))
    sim.start(spec)
    sim.wait_over()
    assert _started(sim) == [str(sim.folder / "ckpt/from-before.pt")]


def test_the_one_before_it_where_it_kills_the_attempt(sim: TestNode) -> None:
    """The newest is damaged in a way that no look can tell."""
    script = """
    echo "args: $*"
    case "$*" in
        *2.pt) echo 'Traceback (most recent call last):'; echo 'ValueError: unexpected end of weights'; exit 1;;
        *1.pt) exit 0;;
    esac
    echo 1 >ckpt/1.pt; sleep 0.05; echo 2 >ckpt/2.pt; exit 1
    """
    sim.start(_job(sim, script))
    assert sim.wait_over().state == "succeeded", sim.events()
    assert [path and Path(path).name for path in _started(sim)] == [None, "2.pt", "1.pt"]


def test_other_values_and_a_checkpoint_are_for_a_person_to_decide(sim: TestNode) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of"
    oom += " 95.59 GiB of which 3.05 GiB is free."
    script = f'echo "args: $*"; [ {{}} = 1 ] && exit 0; echo 1 >ckpt/1.pt; echo "{oom}"; exit 1'
    spec = _job(sim, script.replace("{}", "$1"), on_oom=OnOom(reduce=["n"]), params={"n": 2})
    spec = RunSpec.from_json({**spec.to_json(), "command": "sh job.sh {n}"})
    sim.start(spec)
    life = sim.wait_over()
    assert (life.state, life.attempt) == ("blocked", 1)
    assert "resume_changed" in (life.why or "")
    sim.ask("job-1", "relaunch", params={"n": 1})
    assert sim.wait_state("succeeded").attempt == 2
    assert sim.log(attempt=2) == f"args: 1 --resume {sim.folder}/ckpt/1.pt\n"


def test_outputs_are_set_aside_but_for_the_checkpoints(sim: TestNode) -> None:
    script = "mkdir -p out; ls out; echo $GPUCTL_ATTEMPT >out/result; echo c >out/$GPUCTL_ATTEMPT.pt; [ $# != 0 ]"
    spec = _job(sim, script, outputs=Outputs(["out/"], "archive"), resume=Resume("out/*.pt", "--resume {latest}"))
    sim.start(spec)
    assert sim.wait_over().state == "succeeded"
    (relaunching,) = sim.events(type="relaunching")
    assert relaunching["archived"] == [str(sim.folder / "out.attempt-1")]
    assert sorted(os.listdir(sim.folder / "out.attempt-1")) == ["result"]
    assert sorted(os.listdir(sim.folder / "out")) == ["1.pt", "2.pt", "result"]
    assert sim.log(attempt=2) == "1.pt\n"
    sim.call("remove", runs=["job-1"], archives=True)
    assert not (sim.folder / "out.attempt-1").exists()
    assert (sim.folder / "out/result").read_text() == "2\n"


def test_a_supervisor_that_dies_before_it_has_renamed(sim: TestNode) -> None:
    script = "mkdir -p out; ls out; echo x >out/result; [ $GPUCTL_ATTEMPT = 2 ]"
    sim.fault("archiving")
    sim.start(_job(sim, script, outputs=Outputs(["out"], "archive"), resume=None))
    assert sim.wait_over().state == "succeeded"
    assert os.listdir(sim.folder / "out.attempt-1") == ["result"]
    assert sim.log(attempt=2) == ""


def test_a_launch_that_would_rename_anothers_outputs_is_refused(sim: TestNode) -> None:
    sim.start(sim.job("sleep 60", "first-1", gpus=0, outputs=Outputs(["out"], "keep")))
    answer = sim.start(sim.job("true", "second-1", gpus=0, outputs=Outputs(["out"], "archive")))
    assert answer["error"]["code"] == 5
    assert "first-1" in answer["error"]["what"]
    assert "second-1" not in sim.ps()


@pytest.mark.parametrize("python", pythons("3.8"))
def test_on_the_oldest_python(tmp_path: Path, python: str) -> None:
    script = "mkdir -p out; ls out; echo x >out/log; echo c >out/$GPUCTL_ATTEMPT.pt; echo step 1/2; [ $# != 0 ]"
    with node(tmp_path, python=python) as sim:
        resume = Resume("out/*.pt", "--resume {latest}")
        sim.start(_job(sim, script, gpus=1, outputs=Outputs(["out"], "archive"), resume=resume))
        assert sim.wait_over().state == "succeeded", sim.errors()
        assert sim.log(attempt=2) == "1.pt\nstep 1/2\n"
        found = sim.call("replay", run="job-1")[-1]
        assert [attempt["differs"] for attempt in found["attempts"]] == [False, False]
        assert sim.errors() == ""


def test_a_launch_that_finds_nothing_to_resume_says_so(sim: TestNode) -> None:
    answer = sim.start(_job(sim, "exit 0", resume_older=True))
    assert "ckpt/*.pt" in answer["warnings"][0]
    sim.wait_over()
    (sim.folder / "ckpt/1.pt").write_text("x")
    again = RunSpec.from_json({**_job(sim, "exit 0", resume_older=True).to_json(), "run": "job-2"})
    assert sim.start(again)["warnings"] == []
    sim.wait_over("job-2")


THEIRS_TOO = [
    "ckpt/*.pt",
    "ckpt/step_?.pt",
    "other/../ckpt/[a-z]tep_1.pt",
    "**/*.pt",
    "{folder}/ckpt/step_{attempt}.pt",
]


@pytest.mark.parametrize("when", THEIRS_TOO)
def test_a_launch_beside_a_live_run_with_the_same_checkpoints_is_refused(sim: TestNode, when: str) -> None:
    sim.start(sim.job("sleep 60", "first-1", gpus=0, resume=Resume("./ckpt/step_*.pt", "{latest}")))
    resume = Resume(when.replace("{folder}", str(sim.folder)), "{latest}")
    answer = sim.start(sim.job("true", "second-1", gpus=0, resume=resume))
    assert answer["error"]["code"] == 5
    assert "first-1" in answer["error"]["what"] and "{run}" in answer["error"]["hint"]
    for own in ("ckpt/{run}/*.pt", "other/step_*.pt", "ckpt/*.bin", "ckpt/last_*.pt", "*.pt"):
        spec = sim.job("true", f"own-{own.count('/')}{len(own)}", gpus=0, resume=Resume(own, "{latest}"))
        assert "error" not in sim.start(spec), own


def test_what_others_wrote_between_its_attempts_is_none_of_its_own(sim: TestNode) -> None:
    """Nor what they wrote before it began, though it was made by the same job in the same folder."""
    spec = _job(sim, 'echo "args: $*"; echo 1 >ckpt/mine.pt; exit 1', policy={})
    sim.start(spec)
    assert sim.wait_over().state == "failed"
    theirs = sim.folder / "ckpt/theirs.pt"
    theirs.write_text("x")
    ended = os.stat(sim.folder / "ckpt/mine.pt").st_mtime
    os.utime(theirs, (ended + 600, ended + 600))
    sim.ask("job-1", "relaunch", wait=True)
    wait_until(lambda: len(_started(sim)) == 2)
    assert _started(sim) == [None, str(sim.folder / "ckpt/mine.pt")]


def test_when_the_attempts_of_a_run_lived() -> None:
    def at(second: int, type: str) -> dict[str, str]:
        return {"type": type, "time": f"2026-01-01T00:00:{second:02}.500Z"}

    zero = spans([at(0, "attempt_started")], 0.0)[0][0]
    events = [at(0, "attempt_started"), at(5, "attempt_exited"), at(6, "run_finished"), at(20, "attempt_started")]
    assert spans(events[:1], 3.0) == [(zero, float("inf"))], "it lives"
    assert spans(events[:3], 3.0) == [(zero, zero + 8.5)]
    assert spans(events, 3.0) == [(zero, zero + 8.5), (zero + 20, float("inf"))]
    lost = [events[0], at(9, "run_finished")]
    assert spans(lost, 3.0) == [(zero, zero + 12.5)], "the machine was restarted"


def test_what_blocks_its_reader_is_no_checkpoint(sim: TestNode) -> None:
    spec = _job(sim, "mkfifo ckpt/1.pt; exit 1", policy={"unknown": Relaunches(1, 0.0)})
    sim.start(spec)
    assert (sim.wait_over().state, _started(sim)) == ("failed", [None, None])


def test_a_disk_of_checkpoints_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    monkeypatch.setattr(resuming, "ANSWER_S", 0.1)
    monkeypatch.setattr(resuming, "checkpoints", lambda *_: silent.wait())
    monkeypatch.setattr(resuming.outputs, "spared", lambda *_: silent.wait())
    ended: list[tuple[str, str]] = []
    supervisor: Any = SimpleNamespace(
        spec=RunSpec("job-1", "job", "n", "true", workdir=str(tmp_path), resume=RESUME),
        node=NodeSpec("n", state_dir=str(tmp_path)),
        run=SimpleNamespace(journal=str(tmp_path / "journal.jsonl")),
        record=Record(str(tmp_path / "journal.jsonl")),
        state_dir=str(tmp_path),
        finish=lambda *said: ended.append(said),
    )
    going_on = resuming.Resuming(supervisor)
    assert not going_on.any()
    assert not going_on.choose()
    assert ended[0][0] == "blocked" and "silent" in ended[0][1]
    trouble = going_on.set_aside({"archived_from": [str(tmp_path / "a")], "archived": [str(tmp_path / "b")]})
    assert trouble is not None and "no answer" in trouble
    silent.set()
