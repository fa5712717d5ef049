"""Each verb of the node as a method with types. What a node answers is parsed here, and only here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuctl.agent.calling import Caller
from gpuctl.agent.framing import Chunk
from gpuctl.errors import GpuctlError, NodeUnfit
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.replies import CleanReport, DeviceRow, RunRow
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.word import Word

W = TypeVar("W", bound=Word)

READING_S = 150.0  # the first reading of the GPUs alone may take 60 s, until a driver is said to hang
CLEAN_S = 300.0  # it waits for processes to end, and for memory to be given back
REMOVE_S = 300.0  # folders of many GiB
REPLAY_S = 600.0  # logs of many GiB


@dataclass(frozen=True)
class Started:
    run: RunRow
    warnings: list[str]


@dataclass(frozen=True)
class Gpus:
    """`error` says why there are no devices."""

    devices: list[DeviceRow]
    driver: str | None
    error: str | None


@dataclass(frozen=True)
class Ledger:
    """What attempts on this node have shown, oldest first, and the runs of which only a line of history is left."""

    entries: list[LedgerEntry]
    removed: list[RunRow]


class Agent(Caller):
    """One node. `transport` is closed by whoever opened it."""

    async def start(self, spec: RunSpec, *, secrets: Mapping[str, str], force: bool = False) -> Started:
        """The run's first record is on the node's disk when this returns. The same id again is the same run."""
        answer = await self.call("start", deadline_s=READING_S, spec=spec.to_json(), secrets=dict(secrets), force=force)
        return Started(self._word(RunRow, answer.get("run")), [str(text) for text in answer.get("warnings") or []])

    async def ps(self, *, all: bool = False, runs: Sequence[str] | None = None) -> list[RunRow]:
        answer = await self.call("ps", all=all, runs=None if runs is None else list(runs))
        return self._words(RunRow, answer.get("runs"))

    def events(self, run: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[dict[str, Any]]:
        """The journal's events with a `seq` above `after`; with `follow` until the run has ended."""
        return self._objects("events", run=run, after=after, follow=follow)

    async def log(
        self,
        run: str,
        *,
        attempt: int | None = None,
        file: str | None = None,
        offset: int | None = None,
        lines: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[Chunk]:
        """An attempt's log (the last one's), from `offset` or its last `lines`; with `follow` over attempts."""
        arguments = {"attempt": attempt, "file": file, "offset": offset, "lines": lines, "follow": follow}
        async with aclosing(self.stream("log", run=run, **arguments)) as answers:
            async for answer in answers:
                if isinstance(answer, Chunk):
                    yield answer

    def watch(
        self,
        *,
        runs: Sequence[str] | None = None,
        after: Mapping[str, int] | None = None,
        samples: bool = False,
        every_s: float = 1.0,
    ) -> AsyncGenerator[dict[str, Any]]:
        """Verb `stream`: all runs' events on one stream, and samples: `{"run", "event"}` and `{"sample"}`."""
        wanted = None if runs is None else list(runs)
        arguments = {"runs": wanted, "after": dict(after or {}), "samples": samples, "every_s": every_s}
        return self._objects("stream", **arguments)

    def request(
        self, run: str, request: Request, *, secrets: Mapping[str, str] | None = None, wait: bool = True
    ) -> AsyncGenerator[dict[str, Any]]:
        """The event that answers it; with `wait` the journal's events until what was asked for has been done."""
        arguments = {"request": request.to_json(), "secrets": secrets and dict(secrets), "wait": wait}
        return self._objects("request", run=run, **arguments)

    async def gpus(self) -> Gpus:
        return self._gpus(await self.call("gpus", deadline_s=READING_S))

    async def follow_gpus(self, *, every_s: float = 1.0) -> AsyncGenerator[Gpus]:
        async with aclosing(self._objects("gpus", follow=True, every_s=every_s)) as answers:
            async for answer in answers:
                yield self._gpus(answer)

    async def clean(
        self,
        *,
        gpus: Sequence[int] | None = None,
        dry_run: bool = False,
        force: bool = False,
        only: Sequence[tuple[int, int]] | None = None,
    ) -> CleanReport:
        """`only`: none but these are ended, each a pid and its start."""
        wanted = None if gpus is None else list(gpus)
        answer = await self.call("clean", deadline_s=CLEAN_S, gpus=wanted, dry_run=dry_run, force=force, only=only)
        return self._word(CleanReport, answer.get("clean"))

    async def probe(self) -> dict[str, Any]:
        """Facts about the node, for `doctor`: only read, nothing is changed."""
        facts = (await self.call("probe", deadline_s=READING_S)).get("facts")
        if not isinstance(facts, dict):
            raise self._unexpected("facts")
        return facts

    async def remove(
        self,
        *,
        runs: Sequence[str] | None = None,
        older_than_s: float | None = None,
        keep: int | None = None,
        archives: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Ended runs' folders: `{"removed": […], "kept": […]}`."""
        wanted = None if runs is None else list(runs)
        arguments = {"runs": wanted, "older_than_s": older_than_s, "keep": keep}
        return await self.call("remove", deadline_s=REMOVE_S, **arguments, archives=archives, dry_run=dry_run)

    async def ledger(self, *, job: str | None = None) -> Ledger:
        answer = await self.call("ledger", job=job)
        return Ledger(self._words(LedgerEntry, answer.get("entries")), self._words(RunRow, answer.get("removed")))

    async def replay(
        self, *, run: str | None = None, folder: str | None = None, changes: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A recorded run through today's rules: `{"run", "job", "attempts", "missing"}`."""
        return await self.call("replay", deadline_s=REPLAY_S, run=run, folder=folder, changes=dict(changes or {}))

    def _gpus(self, answer: dict[str, Any]) -> Gpus:
        return Gpus(self._words(DeviceRow, answer.get("devices")), answer.get("driver"), answer.get("error"))

    async def _objects(self, verb: str, **arguments: Any) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self.stream(verb, **arguments)) as answers:
            async for answer in answers:
                if isinstance(answer, Chunk):
                    raise self._unexpected("bytes")
                yield answer

    def _words(self, kind: type[W], data: object) -> list[W]:
        if not isinstance(data, list):
            raise self._unexpected(kind.__name__)
        return [self._word(kind, each) for each in data]

    def _word(self, kind: type[W], data: object) -> W:
        try:
            if not isinstance(data, dict):
                raise TypeError
            return kind.from_json(data)
        except (TypeError, KeyError, AttributeError):
            raise self._unexpected(kind.__name__) from None

    def _unexpected(self, what: str) -> GpuctlError:
        return NodeUnfit(
            f"{self.transport.where}: the agent's answer is not what its verb promises ({what})",
            "A fault of gpuctl; `gpuctl doctor` tells more.",
        )
