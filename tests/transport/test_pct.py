"""A container as an argv prefix: what `pct` is given, and that it gives the container what was meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuctl.spec.inventory import Node
from gpuctl.transport import Transport, run
from gpuctl.transport.plain import as_plain
from tests.parts.sshd import running_sshd
from tests.transport.test_contract import HOSTILE, SHOW_ARGV, on

# As the real one: needs `--` before the command, and spoils what is not ASCII.
PCT = """#!/usr/bin/env python3
import os, sys
command, vmid, option, value, dashes, *argv = sys.argv[1:]
assert (command, vmid, option, value, dashes) == ("exec", "101", "--keep-env", "0", "--"), sys.argv
if not all(word.isascii() for word in argv):
    sys.exit("mangled: " + ascii(argv))
os.execvp(argv[0], argv)
"""


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pct").write_text(PCT)
    (tmp_path / "bin" / "pct").chmod(0o755)
    return tmp_path / "bin"


@pytest.mark.parametrize("kind", ["local", "asyncssh"])
def test_argv_arrives_as_sent(kind: str, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(transport: Transport) -> None:
        assert transport.where.startswith("container 101 on ")
        done = await run(transport, ["python3", "-c", SHOW_ARGV, *HOSTILE], deadline_s=20)
        assert [os.fsdecode(word) for word in done.stdout.split(b"\0")] == HOSTILE, done.stderr

    path = f"{bin_folder}:{os.environ['PATH']}"
    if kind == "local":
        monkeypatch.setenv("PATH", path)
        on(Node(name="here", transport="local", container=101), story)
    else:
        with running_sshd(tmp_path / "sshd", f"SetEnv PATH={path} SHLVL=1") as server:
            on(server.node(container=101), story)


def test_ascii_stays_as_it_is() -> None:
    assert as_plain(["echo", "a b", "$x"]) == ["echo", "a b", "$x"]
    assert all(word.isascii() for word in as_plain(["echo", "ä"]))
