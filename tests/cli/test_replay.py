"""`gpuctl replay`, on a run of this machine and on a copy of its folder."""

from __future__ import annotations

from pathlib import Path

from tests.parts.command import Gpuctl

JOB = """
name: lost
node: sim
gpus: 0
command: sh -c 'echo "RuntimeError NCCL communicator was aborted"; exit {code}'
params: {code: 3}
policy: {unknown: {relaunch: 1, backoff: 0}, nccl_error: {relaunch: 1, backoff: 0}}
"""


def test_what_would_be_done_today(gpuctl: Gpuctl) -> None:
    gpuctl.job(JOB + f"workdir: {gpuctl.work}\n")
    gpuctl("launch", "job.yaml", "--follow", code=1)
    same = gpuctl("replay", "lost").out
    assert "now  the same" in same
    assert "it would have gone the same way" in same
    (gpuctl.work / "stricter.yaml").write_text("policy: {unknown: stop, nccl_error: stop}\n")
    told = gpuctl("replay", "--policy", "stricter.yaml", "--json").json()
    assert [attempt["differs"] for attempt in told["attempts"]] == [True, False]
    assert told["attempts"][0]["now"]["state"] == "failed"
    said = gpuctl("replay", "--policy", "stricter.yaml").out
    assert "attempt 1: code=3" in said
    assert "now  " in said
    assert "another way" in said
    run = told["run"]
    (gpuctl.work / "copied").mkdir()
    gpuctl("cp", f"sim:{_folder(gpuctl, run)}", "copied/")
    assert gpuctl("replay", f"copied/{run}", "--policy", "stricter.yaml", "--json").json() == told


def _folder(gpuctl: Gpuctl, run: str) -> Path:
    (found,) = gpuctl.folder.rglob(f"runs/{run}")
    return found


def test_what_is_no_run(gpuctl: Gpuctl) -> None:
    assert "no spec.json" in gpuctl("replay", str(gpuctl.work), code=3).err
    assert "no such folder" in gpuctl("replay", "./nowhere", code=3).err
    (gpuctl.work / "bad.yaml").write_text("polcy: {}\n")
    assert "did you mean policy?" in gpuctl("replay", "lost", "--policy", "bad.yaml", code=2).err
