from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuctl.node.journal import Journal
from gpuctl.node.leases import Leases, Taken
from gpuctl.node.machine import identity
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from tests.records.conftest import NewRun

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def leases(node: NodeSpec) -> Leases:
    return Leases(node)


def take(leases: Leases, run: str, *uuids: str, share: bool = False) -> None:
    with leases.locked():
        leases.take(uuids, run, share)


def holders(leases: Leases) -> dict[str, list[str]]:
    return {uuid: [lease.run for lease in held] for uuid, held in leases.held().items()}


def test_two_runs_never_hold_the_same_gpu(leases: Leases, new_run: NewRun) -> None:
    new_run("a-1"), new_run("b-1")
    take(leases, "a-1", "GPU-0", "GPU-1")
    with pytest.raises(Taken) as taken:
        take(leases, "b-1", "GPU-1", "GPU-2")
    assert [lease.run for lease in taken.value.leases] == ["a-1"]
    assert "a-1" in str(taken.value) and "a-1" in taken.value.hint
    assert holders(leases) == {"GPU-0": ["a-1"], "GPU-1": ["a-1"]}, "nothing of a refused take remains"
    take(leases, "b-1", "GPU-2")
    leases.release("a-1")
    leases.release("a-1")
    assert holders(leases) == {"GPU-2": ["b-1"]}


def test_taking_again_is_the_same_lease_or_another_set(leases: Leases, new_run: NewRun) -> None:
    new_run("a-1")
    take(leases, "a-1", "GPU-0")
    take(leases, "a-1", "GPU-1", "GPU-2")
    assert holders(leases) == {"GPU-1": ["a-1"], "GPU-2": ["a-1"]}


def test_sharing_takes_both(leases: Leases, new_run: NewRun) -> None:
    for run in ("a-1", "b-1", "c-1"):
        new_run(run)
    take(leases, "a-1", "GPU-0", share=True)
    take(leases, "b-1", "GPU-0", share=True)
    assert holders(leases) == {"GPU-0": ["a-1", "b-1"]}
    with pytest.raises(Taken) as taken:
        take(leases, "c-1", "GPU-0")
    assert len(taken.value.leases) == 2
    with pytest.raises(Taken):
        take(leases, "c-1", "GPU-0", share=False)


def test_a_lease_ends_with_its_run_and_comes_back_with_it(leases: Leases, new_run: NewRun) -> None:
    folder = new_run("a-1")
    take(leases, "a-1", "GPU-0")
    journal = Journal(folder.journal)
    journal.append("run_finished", state="failed")
    assert holders(leases) == {}
    journal.append("relaunching", params={})
    assert holders(leases) == {"GPU-0": ["a-1"]}


def test_a_lease_does_not_end_because_nobody_supervises(leases: Leases, new_run: NewRun) -> None:
    folder = new_run("a-1")
    take(leases, "a-1", "GPU-0")
    assert not folder.supervised()
    assert holders(leases) == {"GPU-0": ["a-1"]}


def test_a_caller_that_died_before_its_run_existed_holds_nothing_for_long(
    leases: Leases, monkeypatch: pytest.MonkeyPatch, new_run: NewRun
) -> None:
    new_run("other-1")
    take(leases, "a-1", "GPU-0")
    assert holders(leases) == {"GPU-0": ["a-1"]}
    monkeypatch.setattr("gpuctl.node.leases.UNBORN_S", 0.0)
    assert holders(leases) == {}


def test_a_lease_ends_with_this_life_of_the_machine(node: NodeSpec, leases: Leases, new_run: NewRun) -> None:
    new_run("a-1")
    take(leases, "a-1", "GPU-0")
    for restarted in (replace(identity(), boot_id="another"), replace(identity(), init_start=1 << 40)):
        assert holders(Leases(node, restarted)) == {}


def test_the_queue_is_in_order_of_creation_and_only_for_the_same_gpus(leases: Leases) -> None:
    leases.enqueue("late-1", ["GPU-0", "GPU-1"], 2, "2026-01-01T00:00:02.000Z")
    leases.enqueue("early-1", ["GPU-0"], 1, "2026-01-01T00:00:01.000Z")
    leases.enqueue("other-1", ["GPU-7"], 1, "2026-01-01T00:00:00.000Z")
    assert [leases.place(run) for run in ("early-1", "late-1", "other-1", "none-1")] == [1, 2, 1, None]
    assert [ticket.run for ticket in leases.ahead("new-1", ["GPU-1"])] == ["late-1"]
    leases.enqueue("early-1", ["GPU-0"], 1, "2026-01-01T00:00:01.000Z")
    assert leases.place("late-1") == 2
    leases.leave("early-1")
    leases.leave("early-1")
    assert leases.place("late-1") == 1


ENQUEUE = """
import sys; sys.path.insert(0, sys.argv[1])
from gpuctl.node.leases import Leases; from gpuctl.wire.nodespec import NodeSpec; import json
Leases(NodeSpec.from_json(json.loads(sys.argv[2]))).enqueue("dead-1", ["GPU-0"], 1, "2026")
"""


def test_one_who_died_in_the_queue_lets_others_pass(node: NodeSpec, leases: Leases) -> None:
    subprocess.run([sys.executable, "-c", ENQUEUE, ROOT, json.dumps(node.to_json())], check=True)
    leases.enqueue("a-1", ["GPU-0"], 1, "2027")
    assert leases.place("a-1") == 1


def test_the_folder_is_everyones_and_the_records_readable(leases: Leases) -> None:
    old = os.umask(0o077)
    try:
        take(leases, "a-1", "GPU-0")
    finally:
        os.umask(old)
    assert os.stat(leases.folder).st_mode & 0o7777 == 0o1777
    (record,) = Path(leases.folder).iterdir()
    assert record.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"run": 1}', '{"run": "a-1", "gpus": ["GPU-0"], "machine": {}}', "null"]
)
def test_what_others_left_in_the_folder_is_not_believed(leases: Leases, content: str) -> None:
    (Path(leases.folder) / "a-1.0.lease").write_text(content)
    (Path(leases.folder) / "link.lease").symlink_to("/etc/passwd")
    os.mkfifo(Path(leases.folder) / "pipe.lease")
    assert leases.held() == {}


def test_a_link_in_place_of_the_folder_is_refused(node: NodeSpec, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o777)
    os.symlink(tmp_path / "elsewhere", node.lock_dir)
    with pytest.raises(Refusal) as refusal:
        Leases(node)
    assert refusal.value.code == 4 and node.lock_dir in refusal.value.what


def test_where_the_folder_cannot_be_made_all_accounts_agree_on_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    node = NodeSpec("n", state_dir=str(tmp_path / "state"), lock_dir=str(tmp_path / "file/locks"))
    first = Leases(node, fallback_in=str(tmp_path / "tmp"))
    assert first.folder.startswith(str(tmp_path / "tmp"))
    (tmp_path / "file").unlink()  # now it could be made; but another account uses the other already
    assert Leases(node, fallback_in=str(tmp_path / "tmp")).folder == first.folder


AS_NOBODY = """
import os, sys, json
sys.path.insert(0, sys.argv[1])
from gpuctl.node import leases as module
from gpuctl.wire.nodespec import NodeSpec
module.Leases(NodeSpec.from_json(json.loads(sys.argv[2]))).held()  # imports, before Python's own folder is closed to us
os.setgroups([]); os.setgid(65534); os.setuid(65534)
leases = module.Leases(NodeSpec.from_json(json.loads(sys.argv[2])))
try:
    with leases.locked():
        leases.take(sys.argv[4:], sys.argv[3])
    print("took")
except module.Taken as taken:
    print("taken by", taken.leases[0].run, taken.leases[0].user)
"""


@pytest.fixture
def as_nobody(tmp_path: Path) -> Callable[..., str]:
    if os.getuid() != 0:
        pytest.skip("only root can act as two accounts")
    shared = Path(os.path.realpath(subprocess.check_output(["mktemp", "-d"], text=True).strip()))
    shared.chmod(0o755)
    node = NodeSpec("n", state_dir=str(shared / "nobody"), lock_dir=str(tmp_path / "locks"))
    for folder in tmp_path.parents:
        if folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o711)

    def act(run: str, *uuids: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, ROOT, json.dumps(node.to_json()), run, *uuids],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr

    return act


def test_two_accounts_exclude_each_other(leases: Leases, new_run: NewRun, as_nobody: Callable[..., str]) -> None:
    new_run("a-1")
    take(leases, "a-1", "GPU-0")
    assert as_nobody("n-1", "GPU-0") == "taken by a-1 root"
    assert as_nobody("n-1", "GPU-1") == "took"
    with pytest.raises(Taken) as taken:
        take(leases, "b-1", "GPU-1")
    assert taken.value.leases[0].user == "nobody"


def test_a_short_lock_that_is_never_let_go_is_named(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuctl.node.leases.LOCK_DEADLINE_S", 0.05)
    with leases.locked(), pytest.raises(Refusal) as refusal, leases.locked():
        pass
    assert leases.folder in refusal.value.what and "fuser" in refusal.value.hint
