"""Each verb of the node as a method with types. What a node answers is parsed here, and only here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import StrictInt, TypeAdapter, ValidationError

from gpuctl.agent.calling import Caller
from gpuctl.agent.framing import Chunk
from gpuctl.errors import GpuctlError, NodeUnfit
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.replies import CleanReport, DeviceRow, RunRow
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import RunSpec
from gpuctl.wire.word import Word

W = TypeVar("W", bound=Word)
T = TypeVar("T")

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
    code: dict[str, Any] | None = None


class Agent(Caller):
    """One node. `transport` is closed by whoever opened it."""

    async def start(self, spec: RunSpec, *, secrets: Mapping[str, str], force: bool = False) -> Started:
        """The run's first record is on the node's disk when this returns. The same id again is the same run."""
        answer = await self.call("start", deadline_s=READING_S, spec=spec.to_json(), secrets=dict(secrets), force=force)
        return Started(self._word(RunRow, answer.get("run")), self._checked(list[str], answer.get("warnings") or []))

    async def ps(self, *, all: bool = False, runs: Sequence[str] | None = None) -> list[RunRow]:
        answer = await self.call("ps", all=all, runs=None if runs is None else list(runs))
        return self._words(RunRow, answer.get("runs"))

    def events(self, run: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[dict[str, Any]]:
        """The journal's events with a `seq` above `after`; with `follow` until the run has ended."""
        return self._journal("events", run=run, after=after, follow=follow)

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
        return self._journal("request", run=run, **arguments)

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
        answer = await self.call("probe", deadline_s=READING_S)
        return self._checked(dict[str, Any], answer.get("facts"))

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
        answer = await self.call("remove", deadline_s=REMOVE_S, **arguments, archives=archives, dry_run=dry_run)
        return vars(self._checked(_Removed, answer))

    async def ledger(self, *, job: str | None = None, spec: RunSpec | None = None) -> Ledger:
        """What attempts have shown, of all jobs or one. With a spec: and what code it would run now."""
        answer = await self.call("ledger", job=job, spec=spec.to_json() if spec is not None else None)
        entries, removed = self._words(LedgerEntry, answer.get("entries")), self._words(RunRow, answer.get("removed"))
        return Ledger(entries, removed, self._checked(_Code, {"code": answer.get("code")}).code)

    async def replay(
        self, *, run: str | None = None, folder: str | None = None, changes: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A recorded run through today's rules: `{"run", "job", "attempts", "missing"}`."""
        answer = await self.call("replay", deadline_s=REPLAY_S, run=run, folder=folder, changes=dict(changes or {}))
        return vars(self._checked(_Replayed, answer))

    def _gpus(self, answer: dict[str, Any]) -> Gpus:
        return self._checked(Gpus, answer)

    async def _objects(self, verb: str, **arguments: Any) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self.stream(verb, **arguments)) as answers:
            async for answer in answers:
                if isinstance(answer, Chunk):
                    raise self._unexpected("bytes")
                yield answer

    async def _journal(self, verb: str, **arguments: Any) -> AsyncGenerator[dict[str, Any]]:
        async with aclosing(self._objects(verb, **arguments)) as events:
            async for event in events:
                self._checked(_Event, event)
                yield event

    def _words(self, kind: type[W], data: object) -> list[W]:
        return self._checked(list[kind], data)  # type: ignore[valid-type]

    def _word(self, kind: type[W], data: object) -> W:
        return self._checked(kind, data)

    def _checked(self, kind: type[T], data: object) -> T:
        """Of that kind, whatever the node has sent; keys that this version does not know are left out of words."""
        try:
            return _reader(kind).validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._unexpected(f"{where}: {first['msg']}" if where else str(first["msg"])) from None

    def _unexpected(self, what: str) -> GpuctlError:
        return NodeUnfit(
            f"{self.transport.where}: the agent's answer is not what its verb promises ({what})",
            "A fault of gpuctl; `gpuctl doctor` tells more.",
        )


@dataclass
class _Event:
    """What every event of a journal has; the rest is its type's own."""

    seq: StrictInt
    type: str
    time: str | None = None
    attempt: StrictInt | None = None


@dataclass
class _Removed:
    removed: list[dict[str, Any]]
    kept: list[dict[str, Any]]


@dataclass
class _Code:
    code: dict[str, Any] | None


@dataclass
class _Replayed:
    run: str
    job: str
    attempts: list[dict[str, Any]]
    missing: list[str]


_READERS: dict[object, TypeAdapter[Any]] = {}


def _reader(kind: type[T]) -> TypeAdapter[T]:
    """Made once: that takes as long as reading many answers."""
    if kind not in _READERS:
        _READERS[kind] = TypeAdapter(kind)
    return _READERS[kind]
