from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuctl.node.waiter import PACE_S, Waiter


@pytest.fixture(params=["inotify", "looking"])
def waiter(request: pytest.FixtureRequest) -> Iterator[Waiter]:
    made = Waiter(inotify=request.param == "inotify")
    yield made
    made.close()


def soon(act: Callable[[], object], after_s: float = 0.1) -> threading.Thread:
    thread = threading.Timer(after_s, act)
    thread.start()
    return thread


def append(path: Path, data: str = "x") -> None:
    with path.open("a") as file:
        file.write(data)


def test_nothing_happens_and_the_time_is_up(waiter: Waiter, tmp_path: Path) -> None:
    waiter.watch(str(tmp_path))
    began = time.monotonic()
    assert waiter.wait(0.2) == set()
    assert time.monotonic() - began >= 0.2


def test_a_file_that_grows_wakes_it(waiter: Waiter, tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path)
    waiter.watch(str(path))
    soon(lambda: append(path))
    assert waiter.wait(10) == {str(path)}
    assert waiter.wait(0.3) == set()


def test_a_file_renamed_into_a_folder_wakes_it(waiter: Waiter, tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    requests.mkdir()
    append(tmp_path / "aside")
    waiter.watch(str(requests))
    soon(lambda: os.rename(tmp_path / "aside", requests / "1.json"))
    assert waiter.wait(10) == {str(requests)}


def test_a_file_that_does_not_exist_yet(waiter: Waiter, tmp_path: Path) -> None:
    path = tmp_path / "log"
    waiter.watch(str(path))
    soon(lambda: append(path))
    assert waiter.wait(10) == {str(path)}
    while waiter.wait(0.3):  # created and written are two changes
        pass
    soon(lambda: append(path))
    assert waiter.wait(10) == {str(path)}


def test_the_file_that_takes_the_place_of_another(waiter: Waiter, tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, "old")
    waiter.watch(str(path))
    with path.open("rb"):  # a reader that keeps the old one open hides its end from inotify
        append(tmp_path / "new", "new file")
        os.rename(tmp_path / "new", path)
        assert waiter.wait(10) == {str(path)}
        while waiter.wait(0.3):
            pass
        append(path)
        assert waiter.wait(10) == {str(path)}


def test_a_descriptor_wakes_it_at_once(waiter: Waiter, tmp_path: Path) -> None:
    waiter.watch(str(tmp_path))
    read, write = os.pipe()
    try:
        waiter.add_fd(read)
        soon(lambda: os.write(write, b"x"))
        assert waiter.wait(10) == {read}
        os.close(write)
        os.read(read, 10)
        assert waiter.wait(10) == {read}, "its end too"
        waiter.remove_fd(read)
        assert waiter.wait(0.1) == set()
    finally:
        os.close(read)


def test_a_forgotten_path_wakes_nobody(waiter: Waiter, tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path)
    waiter.watch(str(path))
    waiter.forget(str(path))
    append(path)
    assert waiter.wait(0.3) == set()


def test_a_burst_wakes_it_at_once_and_then_not_for_each_line(tmp_path: Path) -> None:
    waiter = Waiter()
    path = tmp_path / "log"
    append(path)
    waiter.watch(str(path))
    done = threading.Event()

    def burst() -> None:
        with path.open("a", buffering=1) as file:
            while not done.is_set():
                file.write("line\n")

    thread = threading.Thread(target=burst)
    thread.start()
    began = time.monotonic()
    wakes = 0
    while wakes < 8:
        wakes += bool(waiter.wait(10))
    lasted = time.monotonic() - began
    done.set()
    thread.join()
    waiter.close()
    assert wakes <= lasted / PACE_S + 2


def test_where_no_inotify_instance_is_left_it_looks(tmp_path: Path) -> None:
    """A user has 128; the limit on descriptors refuses one in the same way, and disturbs no other process here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        waiter = Waiter()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert waiter._notices is None
    path = tmp_path / "log"
    append(path)
    waiter.watch(str(path))
    append(path)
    assert waiter.wait(10) == {str(path)}
