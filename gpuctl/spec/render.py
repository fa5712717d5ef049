"""One job, rendered for one node: the run spec that the node keeps, the secrets that it does not, and warnings."""

from __future__ import annotations

import secrets as randomness
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuctl.errors import UsageError
from gpuctl.spec import checks, document, fields
from gpuctl.spec.document import dotted
from gpuctl.spec.inventory import Node
from gpuctl.spec.job import Job
from gpuctl.spec.nearest import suggestion
from gpuctl.spec.sections import LowPower, OnOom, Stall
from gpuctl.spec.sections import Relaunches as Budget
from gpuctl.spec.sections import Watch as WatchSection
from gpuctl.wire import braces, runspec
from gpuctl.wire.runspec import RunSpec, Scalar

Gpus = int | str | list[int]

_FAR = 8
"""A value this many times the one known to fit is worth a warning before twenty minutes of loading."""


@dataclass(frozen=True)
class Rendered:
    spec: RunSpec
    secrets: dict[str, str] = field(repr=False)
    warnings: list[str] = field(default_factory=list)


def new_run_id(job_name: str) -> str:
    """`<job>-<six random characters>`: made by the caller, so that a repeated request is the same run."""
    alphabet = string.ascii_lowercase + string.digits
    return f"{job_name}-{''.join(randomness.choice(alphabet) for _ in range(6))}"


def parse_sets(sets: Iterable[str], known: Iterable[str]) -> dict[str, Scalar]:
    """`--set K=V`, each a known parameter, V a scalar as in the file (quotes make it text). Raises `UsageError`."""
    known = list(known)
    values: dict[str, Scalar] = {}
    for each in sets:
        name, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"--set {each}: expected NAME=VALUE")
        if name not in known:
            hint = suggestion(name, known, kind="the job's parameters are")
            raise UsageError(f"--set {each}: the job has no parameter {name!r}", hint[0].upper() + hint[1:])
        values[name] = _set_value(each, text)
    return values


def set_texts(sets: Iterable[str]) -> dict[str, str]:
    """The values of `--set K=V` as they were written."""
    return {name: text for name, _equals, text in (each.partition("=") for each in sets)}


def parse_gpus(text: str) -> Gpus:
    """`--gpus`: `2` is how many, `all`, `0,1` or `[2]` are which. Raises `UsageError`."""
    listed = text.strip().removeprefix("[").removesuffix("]")
    plain: Gpus = text
    if listed != text.strip() or "," in listed:
        parts = [part.strip() for part in listed.split(",")]
        plain = [int(part) for part in parts if part.isdigit()]
        plain = plain if len(plain) == len(parts) else text
    elif listed.isdigit():
        plain = int(listed)
    try:
        return fields.gpus(plain)
    except ValueError as error:
        raise UsageError(f"--gpus {text}: {error}") from error


def with_sets(job: Job, sets: Iterable[str]) -> Job:
    """The job with other values of its parameters, checked again. Raises `UsageError`."""
    sets = list(sets)
    values = parse_sets(sets, job.params)
    if not values:
        return job
    changed = job.with_params(job.params | values, {**job.written, **set_texts(sets)})
    problems = [f"{dotted(place)}: {message}" for place, message in checks.faults_of(changed)]
    if problems:
        given = " ".join(f"{name}={value}" for name, value in values.items())
        raise UsageError("\n".join(f"--set {given}: {problem}" for problem in problems))
    return changed


def render(
    job: Job,
    node: Node,
    *,
    run: str,
    sets: Iterable[str] = (),
    gpus: Gpus | None = None,
    environ: Mapping[str, str],
    by: str = "",
    queue: bool = False,
    after: str | None = None,
    resume: bool = False,
) -> Rendered:
    """The run spec of `job` on `node`. Raises `UsageError`: wrong sets or GPUs, missing secrets (all named)."""
    job = with_sets(job, sets)
    wanted = job.gpus if gpus is None else gpus
    _check_gpus(wanted, node)
    callback = job.callback or node.callback
    spec = RunSpec(
        run=run,
        job=job.name,
        node=node.name,
        command=job.command,
        params=dict(job.params),
        written=dict(job.written),
        setup=job.setup,
        workdir=job.workdir,
        env=dict(job.env),
        secrets=list(job.secrets),
        gpus=wanted,
        type=job.type,
        launcher=job.launcher or node.launcher,
        timeout_s=job.timeout,
        stop=runspec.Stop(job.stop.signal, job.stop.grace),
        share=job.share,
        queue=queue,
        after=after,
        on_oom=on_oom(job.on_oom) if job.on_oom else None,
        on_failure=budget(job.on_failure),
        policy={name: answer if isinstance(answer, str) else budget(answer) for name, answer in job.policy.items()},
        on_busy_wait_s=job.on_busy.wait,
        resume=runspec.Resume(job.resume.when, job.resume.append) if job.resume else None,
        resume_older=resume,
        outputs=runspec.Outputs(list(job.outputs.paths), job.outputs.on_relaunch or "keep"),
        watch=watch(job.watch),
        callback=runspec.Callback(list(callback.when), callback.run) if callback else None,
        observe=job.observe,
        by=by,
    )
    return Rendered(spec, _secrets(job, environ), list(_warnings(job, resume)))


def _set_value(given: str, text: str) -> Scalar:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return document.parse(text, "--set").data  # type: ignore[no-any-return]
    value = "" if text == "" else document.scalar(text)
    try:
        return fields.scalar(value)
    except ValueError as error:
        raise UsageError(f"--set {given}: {error}", "Quote it to have it as text: --set 'K=\"null\"'") from error


def _check_gpus(gpus: Gpus, node: Node) -> None:
    """What the inventory alone can refuse; whether the cards are there and free, only the node knows."""
    own: list[int] | None = node.gpus
    if own is None and node.simulate is not None:
        own = list(range(node.simulate.gpus))
    if own is None or gpus == "all":
        return
    if isinstance(gpus, list) and not set(gpus) <= set(own):
        missing = ", ".join(str(index) for index in gpus if index not in own)
        raise UsageError(f"gpus: node {node.name} has no GPU {missing} for us", f"Its GPUs are {own}")
    if isinstance(gpus, int) and gpus > len(own):
        raise UsageError(f"gpus: {gpus} were asked for, node {node.name} has {len(own)} for us")


def _secrets(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    missing = [name for name in job.secrets if name not in environ]
    if missing:
        raise UsageError(f"secrets: not in your environment: {', '.join(missing)}", "Export them and launch again")
    return {name: environ[name] for name in job.secrets}


def _warnings(job: Job, resume: bool) -> Iterable[str]:
    good = job.on_oom.known_good if job.on_oom else {}
    for name, fits in good.items():
        value = job.params[name]
        if fits > 0 and value / fits >= _FAR:
            yield f"{name} {value} is {value / fits:g} times the value known to fit ({fits})"
    for name in braces.names(job.setup):
        if name in (*job.params, *braces.BUILT_IN):
            yield f"setup is plain shell: {{{name}}} in it is not replaced"
    if resume and job.resume is None:
        yield "--resume: the job has no resume:, so nothing will be resumed"


def on_oom(section: OnOom) -> runspec.OnOom:
    """The section as the node has it."""
    plain = section.model_dump(exclude={"max_lost"})
    return runspec.OnOom(**plain, max_lost_s=section.max_lost)


def budget(section: Budget) -> runspec.Relaunches:
    """The section as the node has it."""
    return runspec.Relaunches(section.relaunch, section.backoff)


def watch(section: WatchSection) -> runspec.Watch:
    """The section as the node has it."""
    return runspec.Watch(
        logs=list(section.logs),
        ready=section.ready,
        ready_within_s=section.ready_within,
        progress=section.progress,
        done=section.done,
        stall=_finding(section.stall) if section.stall else None,
        low_power=_finding(section.low_power) if section.low_power else None,
    )


def _finding(section: Stall | LowPower) -> runspec.Finding:
    return runspec.Finding(section.for_, section.action, section.below if isinstance(section, LowPower) else None)
