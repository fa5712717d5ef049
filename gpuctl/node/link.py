"""`Link`: a node's end of a stream to the controller, framed as JSON lines (and raw bytes after a `chunk` line).

A stream must not outlive who reads it: under `pct` a quiet one would outlast its cut connection. So both ends send a
sign of life; this one ends at the end of stdin, or when three of the controller's are overdue, also in mid-write.
"""

from __future__ import annotations

import json
import os
import select
from typing import Any, Callable, Dict, Optional, Protocol, TypeVar

from gpuctl.node.clock import boottime
from gpuctl.node.waiter import Waiter, Woke
from gpuctl.wire import END

T = TypeVar("T")

OVERDUE = 3  # signs of life in a row


class Outlet(Protocol):
    """Where a followed log goes: the controller, or a pane."""

    def send_chunk(self, header: Dict[str, Any], data: bytes) -> None: ...

    def wait(self, waiter: Waiter, timeout_s: float) -> Woke: ...


class LinkClosed(Exception):
    """No one reads any more: the verb ends, quietly."""


class Link:
    """`keepalive_s` None: a short answer, whose caller has closed stdin already and sends no signs of life."""

    def __init__(self, keepalive_s: Optional[float] = None, *, stdin: int = 0, stdout: int = 1) -> None:
        self._keepalive_s = keepalive_s
        self._stdin = stdin
        self._stdout = stdout
        self._heard = self._sent = boottime()
        os.set_blocking(stdout, False)

    def send(self, value: Dict[str, Any]) -> None:
        self._write(json.dumps(value).encode("ascii") + b"\n")

    def end(self) -> None:
        """Of a stream that is complete. One that only stops lacks this, and its reader asks again."""
        if self._keepalive_s is not None:
            self.send(END)

    def send_chunk(self, header: Dict[str, Any], data: bytes) -> None:
        self._write(json.dumps({"chunk": len(data), **header}).encode("ascii") + b"\n" + data)

    def wait(self, waiter: Waiter, timeout_s: float) -> Woke:
        """What `waiter` answers, after at most `timeout_s`. Raises `LinkClosed`."""
        if self._keepalive_s is None:
            return waiter.wait(timeout_s)
        waiter.add_fd(self._stdin)
        due = self._sent + self._keepalive_s - boottime()
        woke = waiter.wait(max(0.0, min(timeout_s, due)))
        if self._stdin in woke:
            self._listen()
        self._check()
        self._beat(self._keepalive_s)
        return woke

    def during(self, work: Callable[[], T]) -> T:
        """What `work` answers. It may block for long: the controller hears from us all the same."""
        if self._keepalive_s is None:
            return work()
        from concurrent.futures import ThreadPoolExecutor, wait  # here: short answers do without

        with ThreadPoolExecutor(1) as aside:
            working = aside.submit(work)
            while not wait([working], self._keepalive_s / 2).done:
                if select.select([self._stdin], [], [], 0)[0]:
                    self._listen()
                self._check()
                self._beat(self._keepalive_s)
            return working.result()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdout, view) :]
            except BlockingIOError:
                self._wait_for_reader()
            except (BrokenPipeError, ConnectionResetError):
                raise LinkClosed from None
        self._sent = boottime()

    def _wait_for_reader(self) -> None:
        poll = select.poll()
        poll.register(self._stdout, select.POLLOUT)
        if self._keepalive_s is not None:
            poll.register(self._stdin, select.POLLIN)
        if self._stdin in [fd for fd, _ in poll.poll(1000)]:
            self._listen()
        self._check()

    def _beat(self, keepalive_s: float) -> None:
        if boottime() >= self._sent + keepalive_s:
            self.send({"heartbeat": round(boottime(), 3)})

    def _listen(self) -> None:
        if not os.read(self._stdin, 4096):
            raise LinkClosed
        self._heard = boottime()

    def _check(self) -> None:
        if self._keepalive_s is not None and boottime() > self._heard + OVERDUE * self._keepalive_s:
            raise LinkClosed
