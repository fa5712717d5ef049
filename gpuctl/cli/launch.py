"""`gpuctl launch`: starts a run of a job, from its file or from a command line."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gpuctl.cli import completion, options, output, sentences
from gpuctl.cli.failures import Interrupted
from gpuctl.cli.following import detaching, ended_well, until_ended
from gpuctl.cli.tail import show_log
from gpuctl.cli.wait import told
from gpuctl.errors import UsageError
from gpuctl.fleet.fleet import Fleet
from gpuctl.fleet.launching import LaunchInterrupted, LaunchUnknown, start
from gpuctl.fleet.placing import place
from gpuctl.fleet.runs import find
from gpuctl.fleet.who import whoami
from gpuctl.spec.inventory import Inventory, Node
from gpuctl.spec.job import Job, load_job
from gpuctl.spec.render import Gpus, Rendered, new_run_id, parse_gpus, render, with_sets
from gpuctl.store import Store
from gpuctl.wire.replies import RunRow

_ANSWER = ("run", "job", "node", "state", "attempt", "gpus", "params")
_ADHOC = ("reduce", "name", "workdir", "env", "secrets", "setup", "timeout")
_LAST_OF_THE_LOG_S = 5.0


@click.command(
    "launch",
    cls=options.After,
    epilog="Examples: gpuctl launch jobs/eagle3-train.yaml --set max_seq_len=8192 --follow; "
    "gpuctl launch --on gpu1 --gpus 1 --reduce batch-size -- python train.py --batch-size 64",
)
@click.argument("job", required=False, type=click.Path())
@click.option(
    "--on",
    metavar="NODE",
    shell_complete=completion.nodes,
    help="Where: a node; or A,B or label=value: the first with enough free GPUs.",
)
@click.option("--set", "sets", metavar="K=V", multiple=True, help="Another value for a parameter of the job.")
@click.option("--gpus", metavar="N|I,J|all", help="How many GPUs, which ([2] or 0,1), or all; 0: none.")
@click.option("--follow", is_flag=True, help="Show the log until the run has ended; exit code as `wait`.")
@click.option("--dry-run", is_flag=True, help="Start nothing; print the equivalent job file.")
@click.option("--queue", is_flag=True, help="If the GPUs are taken, wait for them in turn.")
@click.option("--after", metavar="RUN", shell_complete=completion.runs, help="Start once this run has succeeded.")
@click.option("--resume", is_flag=True, help="Go on from a checkpoint that an older run left.")
@click.option("--force", is_flag=True, help="Launch what the node refuses as known not to fit.")
@click.option(
    "--reduce", metavar="FLAG", multiple=True, help="After --: this flag's value gives way when memory runs out."
)
@click.option("--name", help="After --: the job's name.")
@click.option("--workdir", metavar="DIR", help="After --: the folder on the node to run in.")
@click.option("--env", metavar="K[=V]", multiple=True, help="After --: a variable of its environment.")
@click.option(
    "--secret", "secrets", metavar="K", multiple=True, help="After --: a variable to take from here, kept off disk."
)
@click.option("--setup", metavar="LINE", multiple=True, help="After --: a shell line before the command.")
@click.option("--timeout", metavar="12h", help="After --: how long an attempt may take.")
@options.as_json
@options.inventory
def command(argv: list[str], as_json: bool, follow: bool, **given: Any) -> int:
    """Start a run of JOB (a file, or a name in jobs/) and return at once.

    Without a file, the command after -- is run exactly as it stands.
    """
    wish = Wish(argv=argv, **given)
    asked: list[str] = []
    try:
        return options.performed(_launch(wish, follow, as_json, asked))
    except KeyboardInterrupt:
        told = f"{asked[0]} may have been started; see: gpuctl ps {asked[0]}" if asked else "nothing was started"
        output.note(f"interrupted: {told}")
        raise Interrupted from None


@dataclass(frozen=True)
class Wish:
    """What the command line asks for."""

    job: str | None = None
    argv: list[str] | tuple[str, ...] = ()
    on: str | None = None
    sets: tuple[str, ...] = ()
    gpus: str | None = None
    dry_run: bool = False
    queue: bool = False
    after: str | None = None
    resume: bool = False
    force: bool = False
    reduce: tuple[str, ...] = ()
    name: str | None = None
    workdir: str | None = None
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    timeout: str | None = None

    def read(self) -> Job:
        """The job meant, with its sets and GPUs."""
        gpus = parse_gpus(self.gpus) if self.gpus is not None else None
        if not self.job:
            return with_sets(self._from_argv(gpus), self.sets)
        extra = [f"--{name.removesuffix('s') if name == 'secrets' else name}" for name in _ADHOC if getattr(self, name)]
        if self.argv or extra:
            raise UsageError(
                f"{' '.join(extra) or '-- CMD'} is for launching without a job file, and {self.job} is one",
                "change the file, or leave it out",
            )
        job = with_sets(load_job(job_file(self.job)), self.sets)
        return job if gpus is None else job.model_copy(update={"gpus": gpus})

    def _from_argv(self, gpus: Gpus | None) -> Job:
        from gpuctl.spec.adhoc import job_from_argv  # here: most launches have a file

        if not self.argv:
            raise UsageError("nothing to launch", "name a job file, or put a command after --")
        return job_from_argv(
            self.argv,
            reduce=self.reduce,
            name=self.name,
            node=self.on if self.on and "," not in self.on and "=" not in self.on else None,
            gpus=gpus,
            workdir=self.workdir,
            env=self.env,
            secrets=self.secrets,
            setup=self.setup,
            timeout=self.timeout,
            environ=os.environ,
        )


def job_file(word: str) -> Path:
    """`jobs/NAME.yaml` may be called by its name alone, where no file of that name is in the way."""
    path, named = Path(word), Path("jobs") / f"{word}.yaml"
    return named if not path.exists() and named.is_file() else path


async def _launch(wish: Wish, follow: bool, as_json: bool, asked: list[str]) -> int:
    """`asked` receives the id of the run, once a node is asked to start it."""
    job = wish.read()
    if wish.dry_run:
        _show(job, wish)
        return 0
    inventory = options.read_inventory()
    nodes = _nodes(inventory, job, wish)
    async with options.opened(inventory) as (fleet, store):
        with output.doing("starting"):
            row = await Launch(fleet, store, job, wish, as_json).start(nodes, asked)
        show_started(row, as_json=as_json)
        return await _follow(fleet, row, as_json) if follow else 0


def _show(job: Job, wish: Wish) -> None:
    from gpuctl.spec.writing import to_yaml  # here: a dry run alone needs it

    if wish.on is not None and "," not in wish.on and "=" not in wish.on:
        job = job.model_copy(update={"node": wish.on})
    output.line(to_yaml(job).rstrip("\n"))


def _nodes(inventory: Inventory, job: Job, wish: Wish) -> list[Node]:
    where = wish.on or job.node
    if where is None:
        raise UsageError(f"job {job.name}: on which node?", f"say --on NODE; there are {', '.join(inventory.nodes)}")
    return inventory.select(where)


@dataclass(frozen=True)
class Launch:
    """One launch: it starts a run, or says that none was started."""

    fleet: Fleet
    store: Store
    job: Job
    wish: Wish
    as_json: bool

    async def start(self, nodes: list[Node], asked: list[str]) -> RunRow:
        run = new_run_id(self.job.name)
        try:
            node = await place(self.fleet, nodes, self.job.gpus, queue=self.wish.queue)
            return await self.on(node, run, asked)
        except asyncio.CancelledError:
            output.note("interrupted: nothing was started")
            raise Interrupted from None
        except LaunchInterrupted as stopped:
            self._tell(stopped, node)
            raise Interrupted from None

    async def on(self, node: Node, run: str, asked: list[str]) -> RunRow:
        """The run on this node. Raises `LaunchInterrupted` where Ctrl-C comes while that is asked for it."""
        rendered = await self._rendered(node, run)
        await asyncio.sleep(0)  # a Ctrl-C until now is heard here, before anything is asked for
        asked.append(run)
        try:
            started = await start(self.fleet.agent(node), rendered, force=self.wish.force)
        except UsageError as error:
            raise _minding_the_tilde(error, node, self.job.workdir) from None
        except LaunchUnknown:
            self.store.launched(run, self.job.name, node.name)  # so that its id leads to the node, if it is there
            raise
        self.store.launched(run, self.job.name, node.name)
        for warning in (*rendered.warnings, *started.warnings):
            output.warn(warning)
        return started.run

    async def _rendered(self, node: Node, run: str) -> Rendered:
        wish = self.wish
        after = None
        if wish.after is not None:
            first = await find(self.fleet, self.store, wish.after)
            if first.node.name != node.name:
                raise UsageError(
                    f"--after {wish.after}: {first.run} is on node {first.node.name}, this one would be on {node.name}",
                    f"gpuctl wait {first.run} && gpuctl launch … does that",
                )
            after = first.run
        return render(
            self.job, node, run=run, environ=os.environ, by=whoami(), queue=wish.queue, after=after, resume=wish.resume
        )

    def _tell(self, stopped: LaunchInterrupted, node: Node) -> None:
        if stopped.known and stopped.started is None:
            output.note("interrupted: nothing was started")
            return
        self.store.launched(stopped.run, self.job.name, node.name)
        if stopped.started is not None:
            show_started(stopped.started.run, as_json=self.as_json)
            output.note(f"interrupted, but {stopped.run} was started; to stop it: gpuctl kill {stopped.run}")
        else:
            output.note(f"interrupted: {stopped.run} may have been started; see: gpuctl ps {stopped.run}")


def _minding_the_tilde(error: UsageError, node: Node, workdir: str) -> UsageError:
    """A folder that is missing there, below the home of this machine: the shell here has filled in the `~`."""
    here = node.transport == "local" and node.container is None
    home = str(Path.home())
    if here or workdir not in error.what or not f"{workdir}/".startswith(f"{home.rstrip('/')}/"):
        return error
    meant = f"~{workdir[len(home) :]}"
    return UsageError(error.what, f"{error.hint}; for the home there, keep your shell from filling in ~: '{meant}'")


def show_started(row: RunRow, *, as_json: bool) -> None:
    if as_json:
        facts = row.to_json()
        output.document({key: facts[key] for key in _ANSWER})
        return
    values = sentences.params(row.params)
    where = f"{row.node}" + (f", GPUs {sentences.gpus(row.gpus)}" if row.gpus else "")
    output.line(row.run)
    output.note(f"{row.state} on {where}" + (f": {values}" if values else "") + f"; see: gpuctl tail -f {row.run}")


async def _follow(fleet: Fleet, row: RunRow, as_json: bool) -> int:
    """The log on stdout and what happens on stderr, until the run has ended; only the ending with --json."""
    agent = fleet.agent(fleet.inventory.node(row.node))

    def heard(event: dict[str, Any]) -> None:
        if event["type"] != "progress":
            output.note(sentences.event_line(event))

    log = None if as_json else asyncio.ensure_future(show_log(agent, row.run, lost=lambda _what: None))
    with detaching(row.run):
        try:
            finished = await until_ended(agent, row.run, heard=None if as_json else heard)
            if log is not None:
                await asyncio.wait([log], timeout=_LAST_OF_THE_LOG_S)
        finally:
            if log is not None:
                log.cancel()
                await asyncio.gather(log, return_exceptions=True)
    output.note(told(row.run, finished))
    return 0 if ended_well(finished) else 1
