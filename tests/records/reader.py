"""The controller's end of a node's stream, for tests: reads its frames from a pipe, and sends signs of life."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

from gpuctl.node.link import Link, LinkClosed
from tests.waiting import wait_until


class Reading:
    """Runs `verb(link)` in a thread; `frames` grows with what it sends, chunks as (header, bytes)."""

    def __init__(self, verb: Callable[[Link], object], *, keepalive_s: float | None = None) -> None:
        self.frames: list[Any] = []
        self.error: BaseException | None = None
        self._stdin_read, self._stdin_write = os.pipe()
        self._stdout_read, self._stdout_write = os.pipe()
        link = Link(keepalive_s, stdin=self._stdin_read, stdout=self._stdout_write)
        self._verb = threading.Thread(target=self._run, args=(verb, link), daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._verb.start()
        self._reader.start()

    def beat(self) -> None:
        os.write(self._stdin_write, b"\n")

    def hang_up(self) -> None:
        os.close(self._stdin_write)

    def join(self) -> list[Any]:
        """All frames, once the verb has ended. Raises what it raised."""
        wait_until(lambda: not self._verb.is_alive() and not self._reader.is_alive(), what="the verb ends")
        if self.error is not None:
            raise self.error
        return self.frames

    @property
    def text(self) -> bytes:
        return b"".join(frame[1] for frame in list(self.frames) if isinstance(frame, tuple))

    @property
    def objects(self) -> list[Any]:
        return [frame for frame in list(self.frames) if not isinstance(frame, tuple) and "heartbeat" not in frame]

    @property
    def closed(self) -> bool:
        return isinstance(self.error, LinkClosed)

    def _run(self, verb: Callable[[Link], object], link: Link) -> None:
        try:
            verb(link)
        except BaseException as error:  # noqa: BLE001  (raised again by `join`)
            self.error = error
        finally:
            os.close(self._stdout_write)

    def _read(self) -> None:
        with open(self._stdout_read, "rb") as stream:
            for line in stream:
                frame = json.loads(line)
                self.frames.append((frame, stream.read(frame["chunk"])) if "chunk" in frame else frame)
