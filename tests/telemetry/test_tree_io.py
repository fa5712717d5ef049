"""What a tree of real processes reads, writes and computes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpuctl.node.clock import boottime
from gpuctl.node.processes import ProcessId, find
from gpuctl.node.tree_io import Tree, counts_of
from gpuctl.wire.samples import TreeIo
from tests.waiting import wait_until

MIB = 1 << 20
WRITES = f"import os, sys; os.write(1, b'.' * {MIB}); sys.stdin.read()"
READ = f"open('/dev/zero', 'rb').read({MIB})"
READS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {READ!r}])"
BELOW = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WRITES!r}])"


@contextmanager
def running(source: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def me() -> ProcessId:
    found = find(os.getpid())
    assert found is not None
    return found.id


def seen(tree: Tree, wanted: str, least: float) -> TreeIo:
    """Looks until one shows at least so much."""
    looks: list[TreeIo | None] = []

    def enough() -> TreeIo | None:
        looks.append(tree.look(boottime()))
        last = looks[-1]
        return last if last is not None and getattr(last, wanted) >= least else None

    return wait_until(enough, what=f"{wanted} of {looks[-3:]}")


def test_the_first_look_says_nothing() -> None:
    tree = Tree(me())
    assert tree.look(boottime()) is None
    tree.forget()
    assert tree.look(boottime()) is None


def test_what_grandchildren_write_counts() -> None:
    tree = Tree(me())
    tree.look(1.0)
    with running(BELOW):
        written = seen(tree, "written_bytes", MIB)
        assert MIB <= written.written_bytes < 2 * MIB
        wait_until(lambda: (io := tree.look(boottime())) and not io.written_bytes and not io.read_bytes)


def test_what_an_ended_child_did_is_not_forgotten() -> None:
    """The kernel adds it to whoever waited for it."""
    with running(f"{READS}; sys.stdin.read()") as process:
        counts = wait_until(lambda: (found := counts_of(process.pid)) and (found[1].read_bytes or 0) > MIB and found)
        assert counts


def test_computing() -> None:
    tree = Tree(me())
    tree.look(boottime())
    with running("while True: pass"):
        busy = seen(tree, "cpu_s", 0.01)
        assert busy.over_s > 0


def test_roots_that_are_gone_have_no_tree() -> None:
    tree = Tree(ProcessId(os.getpid(), 1))
    tree.look(1.0)
    assert tree.look(2.0) == TreeIo(2.0, 1.0, 0, 0, 0.0)


def test_where_the_keeper_is_gone_the_job_is_the_top() -> None:
    with running("import sys; sys.stdin.readline(); print(end='.' * 5_000_000); sys.stdin.read()") as process:
        found = find(process.pid)
        assert found is not None
        assert process.stdin is not None
        tree = Tree(ProcessId(os.getpid(), 1), found.id)
        tree.look(boottime())
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert seen(tree, "written_bytes", MIB).written_bytes >= MIB


def test_a_process_that_is_gone() -> None:
    with running("pass") as process:
        process.wait()
        assert counts_of(process.pid) is None
