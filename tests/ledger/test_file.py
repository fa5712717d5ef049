"""The ledger on a node: who writes it, what is read back, and what `start` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuctl.node import ledger_file
from gpuctl.node.folders import StateFolder
from gpuctl.node.ledger_file import append, read
from gpuctl.node.recording import peaks
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import OnOom, RunSpec
from tests.parts.node import TestNode
from tests.waiting import wait_until

TRAIN = (
    "import sys, time; from gpuctl.simulation.cuda import Gpu; Gpu(0).allocate('x', int(sys.argv[1]) << 20);"
    "[(print('step %d/2' % n), time.sleep(0.6)) for n in (1, 2)]"
)
SHRINKS = """
import os, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
from gpuctl.simulation.cuda import Gpu

def wait(gate):
    while not os.path.exists(gate):
        time.sleep(0.02)

gpu = Gpu(0)
gpu.allocate("model", 3000 << 20)
print("step 1/3", flush=True)
time.sleep(1.0)
gpu.allocate("batch", 9000 << 20)
wait("shrink")
gpu.free("batch")
print("shrunk", flush=True)
wait("end")
print("step 3/3", flush=True)
"""
COMMAND = f'{sys.executable} -c "{TRAIN}" {{size}}'


def state(folder: Path) -> StateFolder:
    folder.mkdir(exist_ok=True)
    return StateFolder(NodeSpec("sim", state_dir=str(folder)))


def entry(run: str = "job-1", attempt: int = 1, **some: Any) -> LedgerEntry:
    return LedgerEntry(run, attempt, run.rpartition("-")[0], "t", "H200", 1, **some)


def job(sim: TestNode, run: str, size: int, **some: Any) -> RunSpec:
    on_oom = OnOom(reduce=["size"], known_good={"size": 5000})
    return sim.job(COMMAND, run=run, gpus=1, params={"size": size}, on_oom=on_oom, **some)


def entries(sim: TestNode, count: int) -> list[dict[str, Any]]:
    return wait_until(lambda: found if len(found := sim.call("ledger")[0]["entries"]) >= count else None)


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    node = state(tmp_path)
    assert read(node) == []
    append(node, entry(params={"bs": 4}, fitted=True, peak_mib=7))
    append(node, entry("other-1"))
    assert [found.run for found in read(node)] == ["job-1", "other-1"]
    assert read(node, "job") == [entry(params={"bs": 4}, fitted=True, peak_mib=7)]
    assert os.stat(node.ledger).st_mode & 0o777 == 0o600


def test_an_attempt_that_was_entered_twice_counts_once(tmp_path: Path) -> None:
    node = state(tmp_path)
    append(node, entry(fitted=False))
    append(node, entry(fitted=True))
    assert read(node) == [entry(fitted=True)]


def test_a_line_that_was_cut_off_hides_no_other(tmp_path: Path) -> None:
    node = state(tmp_path)
    append(node, entry(attempt=1))
    with open(node.ledger, "ab") as file:
        file.write(b'{"run": "job-1", "att')
    append(node, entry(attempt=2))
    with open(node.ledger, "ab") as file:
        file.write(b'\0\0\0\n[]\n{"newer": 1}\n')
    assert [found.attempt for found in read(node)] == [1, 2]


def test_many_writers_at_once(tmp_path: Path) -> None:
    node = state(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append(node, entry(f"job-{number}")), range(64)))
    assert {found.run for found in read(node)} == {f"job-{number}" for number in range(64)}


def test_a_full_disk_leaves_it_as_it_was(tmp_path: Path) -> None:
    node = state(tmp_path)
    append(node, entry())
    before = Path(node.ledger).read_bytes()
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 20},) * 2);"
        "from gpuctl.node.ledger_file import append; from gpuctl.node.folders import StateFolder;"
        "from gpuctl.wire.nodespec import NodeSpec; from gpuctl.wire.ledger import LedgerEntry;"
        "append(StateFolder(NodeSpec('sim', state_dir=sys.argv[1])), LedgerEntry('a-1', 1, 'a', 't', 'm', 1))"
    )
    done = subprocess.run([sys.executable, "-c", limited, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode != 0 and b"bytes were written" in done.stderr
    assert Path(node.ledger).read_bytes() == before


def test_it_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MOST_BYTES", 40_000)
    node = state(tmp_path)
    append(node, entry("old-1", params={"bs": 7}, fitted=True, peak_mib=5))
    for number in range(1000):
        append(node, entry(f"job-{number}", params={"bs": number % 3}, fitted=True))
        assert os.path.getsize(node.ledger) <= 40_000
    found = read(node)
    assert len(found) > 30
    assert [each.run for each in found[-30:]] == [f"job-{number}" for number in range(970, 1000)], (
        "the newest are whole"
    )
    assert found[0] == entry("old-1", params={"bs": 7}, fitted=True, peak_mib=5), "the last word on its values"
    assert os.listdir(tmp_path) == ["ledger.jsonl"]
    assert os.stat(node.ledger).st_mode & 0o777 == 0o600


def test_ever_other_values_do_not_make_it_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MOST_BYTES", 40_000)
    node = state(tmp_path)
    for number in range(500):
        append(node, entry(f"job-{number}", params={"bs": number}))
        assert os.path.getsize(node.ledger) <= 40_000
    assert read(node)[-1].run == "job-499"


def test_writers_lose_nothing_while_it_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MOST_BYTES", 20_000)
    node = state(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append(node, entry(f"job-{number}", params={"bs": number % 5})), range(400)))
    assert len(read(node)) >= 20
    assert {found.params["bs"] for found in read(node)} == set(range(5))


def test_no_room_to_shorten_it_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "MOST_BYTES", 1000)
    node = state(tmp_path)
    os.mkdir(node.ledger + ledger_file.ASIDE)
    for number in range(9):
        append(node, entry(f"job-{number}"))
    assert len(read(node)) == 9


def test_attempts_are_entered_with_what_they_showed(sim: TestNode) -> None:
    sim.start(job(sim, "job-1", 500_000))
    sim.wait_over("job-1")
    failed, *_, fitted = entries(sim, 2)
    assert (failed["attempt"], failed["fitted"], failed["cls"]) == (1, False, "gpu_oom")
    assert (fitted["fitted"], fitted["cls"], fitted["exit_code"]) == (True, None, 0)
    assert fitted["peak_mib"] >= int(fitted["params"]["size"]) > 0
    assert fitted["total_mib"] == 97887
    assert (fitted["count"], fitted["template"]) == (1, failed["template"])
    assert fitted["model"]
    assert failed["duration_s"] > 0 and fitted["loading_s"] is not None
    assert [found["run"] for found in sim.call("ledger", job="nothing")[0]["entries"]] == []


def test_without_gpus_there_is_nothing_to_enter(sim: TestNode) -> None:
    sim.start(sim.job("true", gpus=0))
    sim.wait_over()
    assert sim.call("ledger")[0]["entries"] == []


def test_the_supervisors_death_loses_no_entry(sim: TestNode) -> None:
    sim.fault("exit-seen")
    sim.start(job(sim, "job-1", 1000))
    sim.wait_over("job-1")
    assert [(found["attempt"], found["fitted"]) for found in entries(sim, 1)] == [(1, True)]


def test_the_supervisors_death_hides_no_memory(sim: TestNode) -> None:
    """Memory comes and goes while one supervisor looks; another sees the end."""
    script = sim.folder / "shrinks.py"
    script.write_text(SHRINKS)
    sim.start(sim.job(f"{sys.executable} {script}", gpus=1))
    wait_until(lambda: sim.events(type="progress"))
    journaled = sim.events(type="ready")[0]["loaded_mib"]
    wait_until(lambda: peaks(str(sim.state_dir / "runs/job-1/attempts/1")).get(0, 0) > 9000)
    (sim.folder / "shrink").touch()
    wait_until(lambda: "shrunk" in sim.log())
    sim.kill_9("supervise")
    sim.ps()
    wait_until(lambda: sim.events(type="supervisor_started"))
    (sim.folder / "end").touch()
    assert sim.wait_over().state == "succeeded"
    (found,) = entries(sim, 1)
    assert found["peak_mib"] >= 9000
    assert found["loaded_mib"] == journaled and 3000 <= journaled < 9000


def test_launch_warns_of_what_failed(sim: TestNode) -> None:
    first = sim.start(job(sim, "job-1", 500_000))
    assert not any("ran out of GPU memory" in warning for warning in first["warnings"])
    sim.wait_over("job-1")
    entries(sim, 2)
    again = sim.start(job(sim, "job-2", 600_000))
    (warning,) = [text for text in again["warnings"] if "ran out of GPU memory" in text]
    assert "size=500000" in warning and "fitted" in warning and "(job-1, attempt 1" in warning
    sim.wait_over("job-2")
    smaller = sim.start(job(sim, "job-3", 1000))
    assert not any("ran out of GPU memory" in text for text in smaller["warnings"])


def test_launch_refuses_the_same_code_unless_forced(sim: TestNode) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *words], cwd=checkout, check=True, capture_output=True)

    checkout = sim.folder / "checkout"
    checkout.mkdir()
    (checkout / "file").write_text("1")
    git("init", "-q")
    git("add", "file")
    git("commit", "-qm", "one")

    def spec(run: str, size: int) -> RunSpec:
        made = job(sim, run, size).to_json()
        return RunSpec.from_json({**made, "workdir": str(checkout)})

    sim.start(spec("job-1", 500_000))
    sim.wait_over("job-1")
    entries(sim, 2)
    refused = sim.start(spec("job-2", 500_000))["error"]
    assert refused["code"] == 5
    assert "size=500000" in refused["what"] and "--force" in refused["hint"] and "fitted" in refused["hint"]
    assert "job-2" not in sim.ps()
    (checkout / "file").write_text("2")
    assert "error" not in sim.start(spec("job-3", 500_000)), "another code may fit"
    sim.wait_over("job-3")
    (checkout / "file").write_text("1")
    forced = sim.start(spec("job-4", 500_000), force=True)
    assert any("with the same code" in text for text in forced["warnings"])
    sim.wait_over("job-4")


def test_it_outlives_the_run(sim: TestNode) -> None:
    sim.start(job(sim, "job-1", 1000))
    sim.wait_over("job-1")
    entries(sim, 1)
    wait_until(lambda: sim.call("remove", runs=["job-1"])[0]["removed"])
    answer = sim.call("ledger")[0]
    assert [found["run"] for found in answer["entries"]] == ["job-1"]
    assert [(row["run"], row["state"]) for row in answer["removed"]] == [("job-1", "succeeded")]
    json.dumps(answer)
