"""Where leases are kept: what `doctor` is told of it is what a launch will meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node.leases import Leases
from gpuctl.node.lock_dir import found_folder
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
from tests.records.test_leases import ROOT

AS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from gpuctl.node.leases import Leases
from gpuctl.node.lock_dir import found_folder
from gpuctl.node.refusal import Refusal
from gpuctl.wire.nodespec import NodeSpec
node = NodeSpec.from_json(json.loads(sys.argv[2]))
import encodings.ascii, encodings.idna, linecache, traceback  # before Python's own folder is closed to us
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for look in (lambda: found_folder(node, fallback_in=sys.argv[3]), lambda: Leases(node, fallback_in=sys.argv[3]).folder):
    try:
        print(look())
    except Refusal as refusal:
        print(refusal.code, refusal.what, "|", refusal.hint)
"""

SITUATIONS = {
    "there, of all accounts": ["mkdir -m 1777 locks"],
    "there, of another account": ["mkdir -m 0755 locks"],
    "a file": ["touch locks"],
    "a link": ["mkdir -m 1777 there", "ln -s there locks"],
    "missing, and can be made": ["chmod 0777 ."],
    "missing, and can't be made": ["mkdir -m 1777 tmp"],
    "missing, and the other is there": ["mkdir -m 1777 tmp", 'mkdir -m 1777 tmp/gpuctl$(echo "$PWD/locks" | tr / -)'],
    "missing, and the other is closed": ["mkdir -m 1777 tmp", 'mkdir -m 0755 tmp/gpuctl$(echo "$PWD/locks" | tr / -)'],
    "missing, and nothing can be made": [],
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of this account's, which every other may enter."""
    place = Path(os.path.realpath(subprocess.check_output(["mktemp", "-d"], text=True).strip()))
    place.chmod(0o755)
    yield place
    subprocess.run(["rm", "-rf", str(place)], check=True)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_found_is_what_is_used_or_refused(situation: str, place: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can act as another account")
    for line in SITUATIONS[situation]:
        subprocess.run(["sh", "-c", line], cwd=place, check=True)
    node = NodeSpec("n", state_dir=str(place / "state"), lock_dir=str(place / "locks"))
    words = [sys.executable, "-c", AS, ROOT, json.dumps(node.to_json()), str(place / "tmp")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    found, used = done.stdout.splitlines()
    assert found == used
    refused = "other account" in situation or "closed" in situation or "nothing" in situation or "a " in situation[:2]
    assert found.startswith("4 ") == refused, found


def test_looking_makes_nothing(tmp_path: Path) -> None:
    node = NodeSpec("n", state_dir=str(tmp_path / "state"), lock_dir=str(tmp_path / "a/b/locks"))
    assert found_folder(node) == node.lock_dir
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        (small / "locks").mkdir()
        (small / "locks").chmod(0o1777)
        (small / "fill").write_bytes(b"x" * 4096)
        leases = Leases(NodeSpec("n", state_dir=str(tmp_path / "state"), lock_dir=str(small / "locks")))
        with pytest.raises(Refusal) as refusal, leases.locked():
            leases.take(["GPU-0"], "a-1")
        assert refusal.value.code == 4
        assert str(small / "locks") in refusal.value.what and "No space left" in refusal.value.what
        assert "make room" in refusal.value.hint
        assert os.listdir(small / "locks") == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
