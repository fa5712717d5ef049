from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.node import terminal
from gpuctl.node.folders import RunFolder
from gpuctl.node.journal import Journal
from tests.records.conftest import NewRun
from tests.waiting import wait_until

VIEW = "import sys; sys.path.insert(0, sys.argv[1]); from gpuctl.node.view import main; sys.exit(main(sys.argv[2]))"
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def server() -> Iterator[str]:
    name = f"gpuctl-test-{os.getpid()}"
    yield name
    subprocess.run([*terminal.tmux(name), "kill-server"], capture_output=True, check=False)


def open_view(folder: RunFolder, server: str) -> None:
    terminal.open_view(folder.path, server=server, argv=[sys.executable, "-c", VIEW, ROOT, folder.path])


def pane(folder: RunFolder, server: str) -> str:
    done = subprocess.run(
        [*terminal.tmux(server), "capture-pane", "-p", "-J", "-t", f"={folder.run}:"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def write_log(folder: RunFolder, attempt: int, data: bytes) -> None:
    folder.attempt(attempt).create()
    with open(folder.attempt(attempt).log, "ab") as log:
        log.write(data)


def test_the_pane_shows_the_log_over_attempts_until_the_run_has_ended(new_run: NewRun, server: str) -> None:
    folder = new_run()
    write_log(folder, 1, b"step 1\n")
    open_view(folder, server)
    assert terminal.has_view(folder.path, server=server)
    wait_until(lambda: "step 1" in pane(folder, server))
    write_log(folder, 1, "Schritt zwölf\n".encode())
    wait_until(lambda: "Schritt zwölf" in pane(folder, server))
    write_log(folder, 2, b"second try\n")
    shown = wait_until(lambda: "second try" in pane(folder, server) and pane(folder, server))
    assert "attempt 2" in shown
    Journal(folder.journal).append("run_finished", state="succeeded")
    wait_until(lambda: not terminal.has_view(folder.path, server=server))


def test_opening_it_twice_is_one_session_and_a_prefix_is_another_run(new_run: NewRun, server: str) -> None:
    folder = new_run("train-abc")
    open_view(folder, server)
    open_view(folder, server)
    listed = subprocess.run(
        [*terminal.tmux(server), "list-sessions", "-F", "#S"], capture_output=True, text=True, check=False
    )
    assert listed.stdout.split() == ["train-abc"]
    assert not terminal.has_view(f"{folder.path[:-1]}", server=server)
    terminal.close_view(folder.path, server=server)
    wait_until(lambda: not terminal.has_view(folder.path, server=server))
    terminal.close_view(folder.path, server=server)


@pytest.mark.parametrize("key", [b"\x03", b"q"])
def test_leaving_the_view_leaves_the_run_and_says_how_to_end_it(new_run: NewRun, server: str, key: bytes) -> None:
    folder = new_run()
    write_log(folder, 1, b"step 1\n")
    open_view(folder, server)
    main, side = pty.openpty()
    client = subprocess.Popen(
        [*terminal.tmux(server), "attach-session", "-t", f"={folder.run}"],
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        env={"TERM": "xterm", "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
    os.close(side)
    os.set_blocking(main, False)
    seen = b""

    def read() -> bytes:
        nonlocal seen
        with contextlib.suppress(OSError):
            seen += os.read(main, 65536)
        return seen

    wait_until(lambda: b"step 1" in read())
    os.write(main, key)
    wait_until(lambda: (read(), client.poll())[1] is not None)
    wait_until(lambda: f"gpuctl kill {folder.run}".encode() in read().rpartition(b"goes on")[2])
    os.close(main)
    assert terminal.has_view(folder.path, server=server)


def test_the_server_carries_no_marker_of_ours(new_run: NewRun, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_RUN", "other")
    folder = new_run()
    open_view(folder, server)
    shown = subprocess.run(
        [*terminal.tmux(server), "show-environment", "-g"], capture_output=True, text=True, check=False
    )
    assert "HOME=" in shown.stdout
    assert "GPUCTL" not in shown.stdout


def test_no_key_opens_anything(new_run: NewRun, server: str) -> None:
    for run in ("a-1", "b-1"):  # the second finds the server as the first has set it up
        open_view(new_run(run), server)
        listed = subprocess.check_output([*terminal.tmux(server), "list-keys", "-T", "prefix"], text=True)
        assert sorted(line.split()[3].strip("\\") for line in listed.splitlines()) == sorted(terminal.KEYS)
