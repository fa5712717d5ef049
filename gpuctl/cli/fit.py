"""`gpuctl fit`: finds the largest value of a parameter that fits, by real short runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import click

from gpuctl.cli import completion, options, output, sentences
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.following import lost
from gpuctl.cli.launch import job_file
from gpuctl.errors import UsageError
from gpuctl.fleet.fitting import Fitting, Probe
from gpuctl.fleet.placing import place
from gpuctl.fleet.who import whoami
from gpuctl.spec.document import scalar
from gpuctl.spec.inventory import Inventory, Node
from gpuctl.spec.job import Job, load_job
from gpuctl.spec.render import Rendered, new_run_id, parse_gpus, render, with_sets
from gpuctl.watchdog.search import Number, Search

_FRACTIONS = 64  # of a range of fractions that are tried, where no step is given


class _Number(click.ParamType[Any]):
    """A whole number stays one."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Number:
        found = scalar(value) if isinstance(value, str) else value
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            self.fail(f"expected a number, got {value!r}", param, ctx)
        return found


@click.command(
    "fit",
    epilog="Example: gpuctl fit jobs/eagle3-train.yaml --param max_seq_len --low 4096 --high 32768 --step 512 "
    "--until 'step 20/'",
)
@click.argument("job", type=click.Path())
@click.option("--param", metavar="P", required=True, help="The parameter of the job to find the value of.")
@click.option("--low", type=_Number(), metavar="A", required=True, help="The least value to consider.")
@click.option("--high", type=_Number(), metavar="B", required=True, help="The largest.")
@click.option("--until", metavar="REGEX", required=True, help="The line of the log by which a value has shown to fit.")
@click.option(
    "--step", type=_Number(), metavar="N", help="Only multiples of it; else as on_oom.multiple_of says, or 1."
)
@click.option(
    "--within", type=_Number(), metavar="SHARE", default=0, help="Near enough: 0.05 ends 5 % below a failure."
)
@click.option("--timeout", type=options.Duration(), metavar="1h", help="How long a try may take; else the job's own.")
@click.option("--fresh", is_flag=True, help="Believe nothing that earlier runs showed.")
@click.option("--on", metavar="NODE", shell_complete=completion.nodes, help="Where, instead of the job's node.")
@click.option("--set", "sets", metavar="K=V", multiple=True, help="Another value for another parameter.")
@click.option("--gpus", metavar="N|I,J|all", help="How many GPUs, or which, instead of the job's.")
@options.as_json
@options.inventory
def command(job: str, on: str | None, sets: tuple[str, ...], gpus: str | None, as_json: bool, **how: Any) -> int:
    """Find the largest value of a parameter of JOB that fits, by real short runs of it.

    Each run ends at the --until line, or when memory runs out. What earlier runs showed is not tried again. Ctrl-C ends
    the run that is on its way.
    """
    wanted = with_sets(load_job(job_file(job)), sets)
    if gpus is not None:
        wanted = wanted.model_copy(update={"gpus": parse_gpus(gpus)})
    wish = Wish(**how)
    try:
        return options.performed(_fit(wanted, on, wish, wish.search(wanted), as_json))
    except KeyboardInterrupt:
        output.note("interrupted; nothing of it is left running")
        raise Interrupted from None


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    param: str
    low: Number
    high: Number
    until: str
    step: Number | None
    within: float
    timeout: float | None
    fresh: bool

    def search(self, job: Job) -> Search:
        """The bounds, checked. Raises `UsageError`."""
        with_sets(job, [f"{self.param}={self.low}"])  # an unknown parameter is named here
        given = job.params[self.param]
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise UsageError(f"--param {self.param}: it is {given!r}, no number")
        if job.gpus == 0:
            raise UsageError(f"job {job.name} uses no GPU, so anything fits", "--gpus says otherwise")
        if not 0 < self.low <= self.high:
            raise UsageError(f"--low {self.low} --high {self.high}: expected a range above zero")
        if not 0 <= self.within < 1:
            raise UsageError(f"--within {self.within}: expected a share, such as 0.05")
        try:
            re.compile(self.until)
        except re.error as error:
            raise UsageError(f"--until {self.until!r}: expected a regular expression (Python's): {error}") from None
        return Search(self.low, self.high, self._step(job), self.within)

    def _step(self, job: Job) -> Number:
        if self.step is not None:
            if self.step <= 0:
                raise UsageError(f"--step {self.step}: expected a number above zero")
            return self.step
        if isinstance(self.low, int) and isinstance(self.high, int):
            return job.on_oom.multiple_of.get(self.param, 1) if job.on_oom else 1
        return (self.high - self.low) / _FRACTIONS or 1.0


async def _fit(job: Job, on: str | None, wish: Wish, search: Search, as_json: bool) -> int:
    async with options.opened() as (fleet, store):
        node = await place(fleet, _nodes(fleet.inventory, job, on), job.gpus, queue=False)

        def rendered(value: Number) -> Rendered:
            run = new_run_id(job.name)
            return render(job, node, run=run, sets=[f"{wish.param}={value}"], environ=os.environ, by=whoami())

        def told(value: Number, run: str, probe: Probe | None) -> None:
            if probe is None:
                store.launched(run, job.name, node.name)
                output.note(f"{wish.param}={value}: trying, as {run}")
            else:
                output.note(_told(wish.param, probe))

        agent = fleet.agent(node)
        fitting = Fitting(agent, wish.param, wish.until, rendered, search, wish.timeout, told, lost)
        if not wish.fresh:
            await fitting.recall()
        value = await fitting.run()
    _answer(job, node, fitting, as_json=as_json)
    return 0 if value is not None else 1


def _nodes(inventory: Inventory, job: Job, on: str | None) -> list[Node]:
    where = on or job.node
    if where is None:
        raise UsageError(f"job {job.name}: on which node?", f"say --on NODE; there are {', '.join(inventory.nodes)}")
    return inventory.select(where)


def _told(param: str, probe: Probe) -> str:
    entry = probe.entry
    if probe.fitted:
        peak = f", {_gib(entry.peak_mib)} of {_gib(entry.total_mib)} used" if entry.peak_mib and entry.total_mib else ""
        text = f"{param}={probe.value}: fits{peak}"
    else:
        text = f"{param}={probe.value}: does not fit ({entry.cls})"
    return f"{text}, as {probe.run} showed" if probe.known else f"{text}; took {sentences.duration(entry.duration_s)}"


def _answer(job: Job, node: Node, fitting: Fitting, *, as_json: bool) -> None:
    search, param = fitting.search, fitting.param
    good, bad = search.good, search.bad
    best = next((probe for probe in reversed(fitting.probes) if probe.fitted and probe.value == good), None)
    peak, total = (best.entry.peak_mib, best.entry.total_mib) if best else (None, search.total_mib)
    margin = total - peak if peak is not None and total is not None else None
    if as_json:
        output.document({
            "job": job.name,
            "node": node.name,
            "param": param,
            "value": good,
            "does_not_fit": bad,
            "peak_mib": peak,
            "total_mib": total,
            "margin_mib": margin,
            "probes": [_probe(probe) for probe in fitting.probes],
        })  # fmt: skip
        return
    if good is None:
        output.error(
            f"{param}={search.low} does not fit either", "a lower --low, more GPUs, or something else must give"
        )
        return
    spare = f", with {_gib(margin)} of {_gib(total)} to spare" if margin is not None else ""
    output.line(
        f"{param}={good} fits{spare}; " + (f"{bad} does not" if bad is not None else "it is the --high of the range")
    )
    output.note(f"to use it: gpuctl launch {job.name} --set {param}={good}, or write it in the job file")


def _probe(probe: Probe) -> dict[str, Any]:
    entry = probe.entry
    return {
        "value": probe.value,
        "run": probe.run,
        "fitted": probe.fitted,
        "class": entry.cls,
        "known": probe.known,
        "peak_mib": entry.peak_mib,
        "duration_s": entry.duration_s,
    }


def _gib(mib: int | None) -> str:
    return f"{(mib or 0) / 1024:.1f} GiB"
