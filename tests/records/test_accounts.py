"""Two accounts of one machine: they share nothing but the folder of leases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuctl.node.leases import Leases, Taken
from gpuctl.wire.nodespec import NodeSpec
from tests.records.conftest import NewRun

ROOT = str(Path(__file__).parents[2])


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


def test_two_accounts_exclude_each_other(node: NodeSpec, new_run: NewRun, as_nobody: Callable[..., str]) -> None:
    leases = Leases(node)
    new_run("a-1")
    with leases.locked():
        leases.take(["GPU-0"], "a-1")
    assert as_nobody("n-1", "GPU-0") == "taken by a-1 root"
    assert as_nobody("n-1", "GPU-1") == "took"
    with pytest.raises(Taken) as taken, leases.locked():
        leases.take(["GPU-1"], "b-1")
    assert taken.value.leases[0].user == "nobody"
