from __future__ import annotations

import os
import threading

import pytest

from gpuctl.node.link import Link, LinkClosed
from gpuctl.node.waiter import Waiter
from tests.records.reader import Reading
from tests.waiting import wait_until


def wait_for_ever(link: Link) -> None:
    waiter = Waiter()
    try:
        while True:
            link.wait(waiter, 60)
    finally:
        waiter.close()


def test_frames_are_lines_and_raw_bytes() -> None:
    def verb(link: Link) -> None:
        link.send({"text": "é\n"})
        link.send_chunk({"offset": 7}, b'\0{"a": 1}\n')

    assert Reading(verb).join() == [{"text": "é\n"}, ({"chunk": 10, "offset": 7}, b'\0{"a": 1}\n')]


def test_it_beats_while_it_waits_and_ends_with_its_stdin() -> None:
    reading = Reading(wait_for_ever, keepalive_s=0.05)
    wait_until(lambda: (reading.beat(), sum("heartbeat" in frame for frame in list(reading.frames)) >= 3)[1])
    reading.hang_up()
    wait_until(lambda: reading.closed)


def test_it_ends_when_three_signs_of_life_are_overdue() -> None:
    reading = Reading(wait_for_ever, keepalive_s=0.1)
    wait_until(lambda: reading.closed)
    reading.hang_up()
    assert sum("heartbeat" in frame for frame in reading.frames) in (2, 3, 4)


def test_it_beats_while_work_blocks_it() -> None:
    go_on = threading.Event()
    reading = Reading(lambda link: link.send(link.during(lambda: {"done": go_on.wait(20)})), keepalive_s=0.05)
    wait_until(lambda: (reading.beat(), sum("heartbeat" in frame for frame in list(reading.frames)) >= 4)[1])
    go_on.set()
    assert reading.join()[-1] == {"done": True}


@pytest.mark.parametrize("ending", ["overdue", "stdin ends", "reader gone"])
def test_it_ends_in_mid_write_too(ending: str) -> None:
    """A controller that reads no more: the pipe is full for ever, or breaks."""
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    link = Link(0.1 if ending == "overdue" else 60.0, stdin=stdin_read, stdout=stdout_write)
    if ending == "stdin ends":
        os.close(stdin_write)
    if ending == "reader gone":
        os.close(stdout_read)
    with pytest.raises(LinkClosed):
        link.send_chunk({}, b"x" * (1 << 20))
