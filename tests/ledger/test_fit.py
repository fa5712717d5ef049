"""`gpuctl fit`, by the command alone: real runs on simulated GPUs whose memory depends on the parameter."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site
from tests.parts.leftovers import end_all
from tests.waiting import wait_until

TOTAL = 97887
PROGRAM = """\
import sys, time
from gpuctl.simulation.cuda import Gpu
size, wait = int(sys.argv[1]), float(sys.argv[2])
gpu = Gpu(0)
gpu.allocate("weights", 60000 << 20)
print("model loaded", flush=True)
gpu.allocate("activations", size * 500 << 20)
for step in range(1, 1000):
    print("step %d/1000" % step, flush=True)
    time.sleep(wait)
"""
JOB = """\
name: train
node: sim
gpus: 1
workdir: {work}
command: python3 train.py {{size}} {{wait}}
params: {{size: 500, wait: 0.05}}
on_oom: {{reduce: size}}
watch: {{ready: model loaded}}
callback: {{when: [failed, succeeded], run: 'touch "$HOME/called-$GPUCTL_RUN"'}}
"""
LARGEST = 73  # beside 60000 MiB of weights and the context of the process


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.job(JOB.format(work=made.work))
    (made.work / "train.py").write_text(PROGRAM)
    yield made
    end_all(tmp_path)


FIT = ("fit", "job.yaml", "--param", "size", "--low", "1", "--high", "500", "--until", "step 3/")


def tried(answer: dict[str, Any]) -> list[tuple[int, bool]]:
    return [(probe["value"], probe["fitted"]) for probe in answer["probes"] if not probe["known"]]


def test_the_largest_that_fits(site: Site) -> None:
    answer = site(*FIT, "--json").json()
    assert (answer["value"], answer["does_not_fit"]) == (LARGEST, LARGEST + 1)
    assert answer["margin_mib"] == TOTAL - answer["peak_mib"] < 1500
    assert len(tried(answer)) <= 12
    rows = site("ps", "--json").json()
    assert {row["state"] for row in rows} == {"succeeded", "failed"}
    assert site.used_mib("sim") == 0

    again = site(*FIT)
    assert f"size={LARGEST} fits, with" in again.out and f"{LARGEST + 1} does not" in again.out
    assert "trying" not in again.err, "the ledger knew"
    assert len(site("ps", "--json").json()) == len(rows)
    near = site("launch", "job.yaml", "--set", f"size={LARGEST + 5}")
    assert f"size={LARGEST + 1} ran out of GPU memory" in near.err, "launch learns from it"
    site("kill", near.out.strip(), code=None)


def test_failures_of_other_code_are_tried_anew(site: Site) -> None:
    """The program needed more memory for each unit in its last commit, or in another environment."""

    def commit() -> None:
        for words in (("init", "-q"), ("add", "train.py"), ("commit", "-qm", "x")):
            subprocess.run(("git", "-c", "user.name=x", "-c", "user.email=x", *words), cwd=site.work, check=True)

    heavy = PROGRAM.replace("size * 500", "size * int(os.environ.get('EACH', '5000'))")
    heavy = heavy.replace("import sys", "import os, sys")
    (site.work / "train.py").write_text(heavy)
    commit()
    assert site(*FIT, "--json").json()["value"] == LARGEST // 10
    site.job(JOB.format(work=site.work) + "env: {EACH: '1000'}\n")
    answer = site(*FIT, "--json").json()
    assert answer["value"] == LARGEST // 2
    (site.work / "train.py").write_text(heavy.replace("get('EACH', '5000')", "get('NONE', '500')"))
    commit()
    assert site(*FIT, "--json").json()["value"] == LARGEST


def test_what_the_bounds_hold(site: Site) -> None:
    stepped = site(*FIT, "--step", "16", "--json").json()
    assert (stepped["value"], stepped["does_not_fit"]) == (64, 80)
    all_fit = site("fit", "job.yaml", "--param", "size", "--low", "2", "--high", "8", "--until", "step 3/")
    assert all_fit.out.startswith("size=8 fits") and "--high" in all_fit.out
    none = site("fit", "job.yaml", "--param", "size", "--low", "200", "--high", "500", "--until", "step 3/", code=1)
    assert "size=200 does not fit either" in none.err


def test_a_failure_that_says_nothing_about_memory(site: Site) -> None:
    (site.work / "train.py").write_text("raise ValueError('no data')")
    done = site(*FIT, code=1)
    assert "says nothing about memory" in done.err and "gpuctl explain train-" in done.err


def test_ctrl_c_leaves_nothing_running(site: Site) -> None:
    process = site.start(*FIT[:-1], "never printed")
    (run,) = wait_until(lambda: [path.name for path in (site.state / "runs").glob("train-*")])
    site.await_event(run, "progress")
    os.killpg(process.pid, signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"nothing of it is left running" in err
    (row,) = site("ps", "--json").json()
    assert row["state"] == "killed"
    assert site.used_mib("sim") == 0
    (entry,) = site("history", "--json").json()["runs"][0]["attempts"]
    assert not entry["fitted"] and entry["class"] is None, "it was not seen to fit"


def test_the_node_ends_the_probe_itself(site: Site) -> None:
    process = site.start(*FIT)
    (run,) = wait_until(lambda: [path.name for path in (site.state / "runs").glob("train-*")])
    site.await_event(run, "attempt_started")
    process.kill()
    process.communicate()
    assert site.await_end(run)["state"] == "succeeded"
    assert site.used_mib("sim") == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--param", "sise", "--low", "1", "--high", "2"), "no parameter 'sise'"),
        (("--param", "size", "--low", "5", "--high", "2"), "expected a range above zero"),
        (("--param", "size", "--low", "x", "--high", "2"), "expected a number"),
        (("--param", "size", "--low", "1", "--high", "2", "--step", "0"), "--step 0"),
        (("--param", "size", "--low", "1", "--high", "2", "--within", "7"), "expected a share"),
        (("--param", "size", "--low", "1", "--high", "2", "--gpus", "0"), "uses no GPU"),
        (("--param", "size", "--low", "1", "--high", "2", "--until", "("), "regular expression"),
    ],
)
def test_wrong_usage(site: Site, words: tuple[str, ...], told: str) -> None:
    until = () if "--until" in words else ("--until", "x")
    assert told in site("fit", "job.yaml", *words, *until, code=2).err
