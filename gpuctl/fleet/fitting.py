"""Finding the largest value of a parameter that fits, by real short runs on the node.

Each probe is a run of the job itself with another value, ended by its supervisor once a line shows that it fits, and
followed to its end. What it showed is read from the node's ledger, which also knows of earlier runs: theirs are not
repeated. Whoever stops waiting for a probe ends it first.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from gpuctl.agent import Agent
from gpuctl.errors import GpuctlError, UsageError
from gpuctl.fleet.follow import Told, follow_events, follow_request
from gpuctl.fleet.launching import LaunchInterrupted, start
from gpuctl.fleet.who import whoami
from gpuctl.spec.render import Rendered
from gpuctl.watchdog.ledger import same, standing, template_of, with_code, with_env
from gpuctl.watchdog.search import Number, Search
from gpuctl.wire.ledger import LedgerEntry
from gpuctl.wire.requests import Request
from gpuctl.wire.runspec import Relaunches, RunSpec, Stop

_STOP = Stop("TERM", 5.0)  # a probe has nothing to save
_ENDING_S = 120.0

Render = Callable[[Number], Rendered]
"""The job with this value of the parameter, as a new run."""


@dataclass(frozen=True)
class Probe:
    """One value, and what is known of it. `run` is one of ours, or the earlier run that showed it."""

    value: Number
    run: str
    entry: LedgerEntry
    known: bool  # from the ledger: nothing was run

    @property
    def fitted(self) -> bool:
        return self.entry.fitted


@dataclass
class Fitting:
    """`search` begins with its bounds alone. `told` hears of each probe, begun (None) and ended."""

    agent: Agent
    param: str
    until: str
    render: Render
    search: Search
    timeout_s: float | None
    told: Callable[[Number, str, Probe | None], None]
    lost: Told
    probes: list[Probe] = field(default_factory=list)

    async def recall(self) -> None:
        """Takes what the ledger knows of this job on these GPUs, with all other values as they are."""
        spec = self._spec(self.search.low).spec
        ledger = await self.agent.ledger(job=spec.job, spec=spec)
        model, count = await self._gpus(spec)
        entries = [
            entry
            for entry in with_env(with_code(same(ledger.entries, template_of(spec), model, count), ledger.code), spec)
            if {**entry.params, self.param: None} == {**spec.params, self.param: None}
        ]
        failed = standing(entries, None)
        for entry in entries:
            if entry.fitted or entry in failed:
                self._learn(entry, known=True)

    async def run(self) -> Number | None:
        """The largest value that fits; None where not even the lowest does."""
        while (value := self.search.next_value()) is not None:
            self._learn(await self._probe(value), known=False)
        return self.search.good

    async def _probe(self, value: Number) -> LedgerEntry:
        """A real run with this value, to its end. Raises `GpuctlError` where it says nothing about memory."""
        rendered = self._spec(value)
        run = rendered.spec.run
        self.told(value, run, None)
        try:
            await start(self.agent, rendered, force=True)  # what failed once may be what is to be found out
            await self._ended(run)
        except (asyncio.CancelledError, LaunchInterrupted):
            await asyncio.shield(self._end(run))
            raise asyncio.CancelledError from None
        entry = next((entry for entry in (await self.agent.ledger()).entries if entry.run == run), None)
        if entry is None or not (entry.fitted or entry.too_big):
            raise await self._says_nothing(run, value)
        return entry

    async def _ended(self, run: str) -> None:
        async with aclosing(follow_events(self.agent, run, lost=self.lost)) as events:
            async for _event in events:
                pass

    async def _end(self, run: str) -> None:
        """Ends our probe, however far it came."""
        request = Request(id=uuid.uuid4().hex, kind="kill", by=whoami(), grace_s=_STOP.grace_s)
        try:
            async with asyncio.timeout(_ENDING_S):
                if not await self.agent.ps(runs=[run]):
                    return
                async with aclosing(follow_request(self.agent, run, request, lost=self.lost)) as events:
                    async for _event in events:
                        pass
        except (GpuctlError, TimeoutError) as error:
            self.lost(f"{run} may still run: {error}")

    async def _says_nothing(self, run: str, value: Number) -> GpuctlError:
        rows = await self.agent.ps(runs=[run])
        why = (rows[0].why if rows else None) or "nobody knows why"
        return GpuctlError(
            f"{self.param}={value} says nothing about memory: {run} {rows[0].state if rows else 'is gone'}: {why}",
            f"gpuctl explain {run}",
        )

    def _learn(self, entry: LedgerEntry, *, known: bool) -> None:
        value = entry.params.get(self.param)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        search = self.search
        fitted = {**search.fitted, value: entry.peak_mib} if entry.fitted else search.fitted
        failed = [each for each in search.failed if each != value] + ([] if entry.fitted else [value])
        loaded = [mib for mib in (search.loaded_mib, entry.loaded_mib) if mib is not None]
        self.search = replace(
            search,
            fitted=fitted,
            failed=failed,
            total_mib=entry.total_mib if entry.total_mib is not None else search.total_mib,
            loaded_mib=min(loaded, default=None),
        )
        probe = Probe(value, entry.run, entry, known)
        self.probes.append(probe)
        self.told(value, entry.run, probe)

    def _spec(self, value: Number) -> Rendered:
        """The job as a probe: it ends at the line, nothing is relaunched, nobody is called, nothing is resumed."""
        rendered = self.render(value)
        spec = replace(
            rendered.spec,
            probe=True,
            watch=replace(rendered.spec.watch, done=self.until),
            stop=_STOP,
            launcher="nohup",
            type="task",
            timeout_s=self.timeout_s if self.timeout_s is not None else rendered.spec.timeout_s,
            on_oom=None,
            on_failure=Relaunches(),
            policy={},
            resume=None,
            callback=None,
            observe=False,
        )
        return replace(rendered, spec=spec)

    async def _gpus(self, spec: RunSpec) -> tuple[str, int]:
        """The model and number of GPUs that a probe will get, as the ledger names them."""
        own = self.agent.node.gpus
        devices = [row.device for row in (await self.agent.gpus()).devices if own is None or row.device.index in own]
        if isinstance(spec.gpus, list):
            devices = [device for device in devices if device.index in spec.gpus]
        if isinstance(spec.gpus, int):
            devices = devices[: spec.gpus]
        if not devices:
            raise UsageError(f"node {spec.node} has no GPU to try it on", "see: gpuctl gpus")
        return " + ".join(sorted({device.name or "" for device in devices})), len(devices)
