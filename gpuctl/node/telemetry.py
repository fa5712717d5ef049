"""Telemetry: what the GPUs read now, asked of the sampler with a deadline.

NVML is never called here. A driver that hangs blocks the sampler, perhaps for ever in a state that no signal reaches
(D); then every answer is absent, `hung` is true, and no second sampler is started for the driver to swallow as well.
Where the first could be ended, a second tries in its own time: nobody waits for its first answer.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from typing import Any, Dict, Mapping, Optional, Sequence

from gpuctl.node.clock import boottime, now
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.samples import Sample

INIT_DEADLINE_S = 60.0  # the first answer: without persistence mode the driver wakes every GPU, seconds for each
ANSWER_DEADLINE_S = 5.0  # any later one: the real figure is a millisecond
RESTART_PAUSE_S = 5.0  # a sampler that ended by itself is not started again and again at the pace of the questions
READ_BYTES = 1 << 16


class Telemetry:
    """Answers about the GPUs of one node. Starts its sampler at the first question; `argv` is how.

    Not for several threads at once.
    """

    def __init__(
        self,
        node: NodeSpec,
        argv: Sequence[str],
        *,
        init_deadline_s: float = INIT_DEADLINE_S,
        answer_deadline_s: float = ANSWER_DEADLINE_S,
    ) -> None:
        self._node = node
        self._argv = list(argv)
        self._init_deadline_s = init_deadline_s
        self._answer_deadline_s = answer_deadline_s
        self._sampler: Optional[subprocess.Popen[bytes]] = None
        self._started_at = 0.0
        self._answered = False  # has this sampler ever answered?
        self._unread = b""
        self._asked = 0  # the last question's id
        self._trying = False  # a sampler that was started after a hang has not answered yet
        self.hung = False
        """The driver did not answer in time, and has not answered since."""
        self.error: Optional[str] = None
        """Why the last question had no answer."""

    @property
    def pid(self) -> Optional[int]:
        """The sampler, while it lives: it has device files open, and whoever looks for users of them spares it."""
        return self._sampler.pid if self._sampler is not None and self._sampler.poll() is None else None

    def sample(self) -> Sample:
        """Every GPU now. No devices and `error` set where nothing could be read."""
        answer = self._ask({"want": "sample"})
        if answer is None:
            return Sample(now(), round(boottime(), 3), error=self.error)
        return Sample.from_json(answer["sample"])

    def memory(self, uuids: Sequence[str]) -> Dict[str, Optional[int]]:
        """MiB used on these GPUs, by UUID, cheap enough to poll; None where a GPU does not answer."""
        answer = self._ask({"want": "memory", "uuids": list(uuids)})
        if answer is None:
            return dict.fromkeys(uuids)
        memory: Dict[str, Optional[int]] = answer["memory"]
        return memory

    def close(self) -> None:
        """Ends the sampler. One that the driver holds in D is left to end when the driver lets go of it."""
        if self._sampler is None:
            return
        for pipe in (self._sampler.stdin, self._sampler.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._sampler.wait(0.5)
        except subprocess.TimeoutExpired:
            self._sampler.kill()
            self._reap(self._sampler)
        self._sampler = None

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """The sampler's answer; None, with `error` set, where there is none."""
        try:
            if not self._ready():
                return None
            deadline_s = self._answer_deadline_s if self._answered else self._init_deadline_s
            self._put(question)
            answer = self._read_until(boottime() + deadline_s)
        except (BrokenPipeError, EOFError):
            self._ended()
            return None
        if answer is None:
            self._silent(deadline_s)
            return None
        self._answered, self.hung, self.error = True, False, None
        return answer

    def _put(self, question: Mapping[str, Any]) -> None:
        self._asked += 1
        self._write({"id": self._asked, **question})

    def _ready(self) -> bool:
        """Is there a sampler to ask? Starts one where that can do no harm."""
        if self._trying:
            return self._answers_again()
        if self._sampler is not None and not self.hung:
            return True
        if self._sampler is not None and self._sampler.poll() is None:
            return False  # killed, but the driver still holds it
        if self._sampler is None and self._started_at and boottime() - self._started_at < RESTART_PAUSE_S:
            return False
        self._start()
        if self.hung:
            self._trying = True
            self._put({"want": "memory", "uuids": []})
        return not self.hung

    def _answers_again(self) -> bool:
        """Whether the sampler that was started after a hang has answered by now."""
        if self._read_until(boottime()) is not None:
            self._trying, self._answered = False, True
            return True
        if boottime() - self._started_at >= self._init_deadline_s:
            self._trying = False
            self._silent(self._init_deadline_s)
        return False

    def _start(self) -> None:
        # Marked as nobody's: without GPUCTL_* in its environment no proof can take it for a part of a job.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}
        self._sampler = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
            bufsize=0,
        )
        self._started_at = boottime()
        self._answered = False
        self._unread = b""
        try:
            self._write(self._node.to_json())
        except BrokenPipeError:
            return  # it is gone already: the question that follows finds that out

    def _write(self, message: Mapping[str, Any]) -> None:
        # Never blocks: one question is out at a time, and is far shorter than a pipe.
        assert self._sampler is not None and self._sampler.stdin is not None
        self._sampler.stdin.write(json.dumps(message).encode() + b"\n")

    def _read_until(self, deadline: float) -> Optional[Dict[str, Any]]:
        """The answer to the last question; None when the deadline passes first. `EOFError`: the sampler ended."""
        assert self._sampler is not None and self._sampler.stdout is not None
        descriptor = self._sampler.stdout.fileno()
        poll = select.poll()  # not select: a supervisor may have descriptors beyond 1023
        poll.register(descriptor, select.POLLIN)
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                answer: Dict[str, Any] = json.loads(line)
                if answer["id"] == self._asked:
                    return answer
                continue  # late, to a question that was given up
            if not poll.poll(max(0.0, deadline - boottime()) * 1000):
                return None
            data = os.read(descriptor, READ_BYTES)
            if not data:
                raise EOFError
            self._unread += data

    def _silent(self, deadline_s: float) -> None:
        assert self._sampler is not None
        self.hung = True
        self.error = f"driver_hung: the driver has not answered for {deadline_s:g} s"
        # Killed at once, so that it is gone as soon as the driver lets go of it, and a new one can start clean.
        self._sampler.kill()

    def _ended(self) -> None:
        assert self._sampler is not None
        sampler, self._sampler, self._trying = self._sampler, None, False
        for pipe in (sampler.stdin, sampler.stdout):
            if pipe is not None:
                pipe.close()
        code = self._reap(sampler)
        how = "is ending" if code is None else f"ended with exit code {code}"
        self.error = f"the sampler {how} ({' '.join(self._argv)})"

    @staticmethod
    def _reap(sampler: subprocess.Popen[bytes]) -> Optional[int]:
        try:
            return sampler.wait(0.5)
        except subprocess.TimeoutExpired:
            return None
