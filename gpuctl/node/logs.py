"""The verb `log`: an attempt's bytes as they are, framed with the place that each piece has in its file.

The place is what lets the controller go on after a cut connection without losing or repeating a byte.
"""

from __future__ import annotations

import os
from typing import Optional

from gpuctl.node.folders import RunFolder
from gpuctl.node.link import Outlet
from gpuctl.node.pursuit import Pursuit, Tail
from gpuctl.node.refusal import NO_SUCH_RUN, Refusal
from gpuctl.wire.life import Life

PIECE = 256 * 1024


class Text:
    """One attempt's file, sent from `offset` on."""

    def __init__(self, path: str, attempt: int, offset: int = 0) -> None:
        self.path = path
        self.attempt = attempt
        self.offset = offset

    def send(self, link: Outlet) -> None:
        """All up to where the file ends now. A file that was cut is sent from its start again: the offsets say so."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            end = os.fstat(fd).st_size
            self.offset = self.offset if self.offset <= end else 0
            while self.offset < end:
                data = os.pread(fd, min(PIECE, end - self.offset), self.offset)
                if not data:
                    return
                link.send_chunk({"attempt": self.attempt, "offset": self.offset}, data)
                self.offset += len(data)
        finally:
            os.close(fd)


class Log:
    """What was asked for: the run's log, or with `file` one that the job writes itself, in whichever attempt."""

    def __init__(self, folder: RunFolder, file: Optional[str]) -> None:
        self.folder = folder
        self.file = file
        self.tail = Tail(folder)
        self.tail.read()

    def text(self, attempt: int, offset: int = 0) -> Text:
        return Text(self._path(attempt), attempt, offset)

    def first(self, attempt: Optional[int], offset: Optional[int], lines: Optional[int], *, follow: bool) -> Text:
        """Where to begin: in `attempt` or the latest one, at `offset` or `lines` before the end."""
        numbers = self.folder.attempt_numbers()
        if attempt is not None and attempt not in numbers and not follow:
            known = ", ".join(map(str, numbers)) or "none yet"
            raise Refusal(NO_SUCH_RUN, f"run {self.folder.run} has no attempt {attempt}", f"its attempts are: {known}")
        text = self.text(attempt if attempt is not None else max(numbers, default=1), offset or 0)
        if self.file is not None and not follow and not os.path.isfile(text.path):
            raise Refusal(NO_SUCH_RUN, f"there is no file {text.path}", "--file is relative to the run's workdir")
        if lines is not None and offset is None:
            text.offset = last_lines(text.path, lines)
        return text

    def follow(self, link: Outlet, text: Text, pursuit: Pursuit, *, over_attempts: bool) -> None:
        """On from `text` as it grows, until the run has ended; without `over_attempts`, until its attempt has."""
        watched = {text.path, self.folder.attempts}
        for _ in pursuit.rounds(link, also=watched):
            if text.offset == 0:
                text.path = self._path(text.attempt)  # it may exist only now, in one of two places
            later = [number for number in self.folder.attempt_numbers() if number > text.attempt]
            text.send(link)  # first what the attempt wrote before a later one began
            for number in later if over_attempts else []:
                text = self.text(number)
                text.send(link)
            watched.add(text.path)
            if later and not over_attempts:
                return

    def _path(self, attempt: int) -> str:
        folder = self.folder.attempt(attempt)
        if self.file is None:
            return folder.log
        own = os.path.join(folder.path, self.file)
        return own if os.path.isfile(own) else os.path.join(workdir_of(self.folder, self.tail.life, attempt), self.file)


def last_lines(path: str, count: int) -> int:
    """The offset at which the last `count` lines begin; an unfinished last line counts."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size = at = os.fstat(fd).st_size
        if count <= 0 or size == 0:
            return size
        missing = count + 1 if os.pread(fd, 1, size - 1) == b"\n" else count  # the last line's own newline ends it
        while at > 0:
            start = max(0, at - PIECE)
            piece = os.pread(fd, at - start, start)
            found = piece.count(b"\n")
            if found >= missing:
                cut = len(piece)
                for _ in range(missing):
                    cut = piece.rfind(b"\n", 0, cut)
                return start + cut + 1
            missing -= found
            at = start
        return 0
    finally:
        os.close(fd)


def workdir_of(folder: RunFolder, life: Life, attempt: int) -> str:
    """The folder that this attempt runs in."""
    from gpuctl.node import shell  # brings subprocess along, which a plain `ps` or `log` does not need

    spec = folder.spec()
    known = shell.values(spec, life.params or spec.params, attempt, len(life.gpus), port=0)
    return shell.workdir(spec, known)
