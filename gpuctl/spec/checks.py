"""What a job file may not say although each key by itself is right.

A check is a function of the job that yields (place, message). `CHECKS` names the top-level keys that it reads: where
one of those is unsound already, the check is left out instead of complaining about the consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from gpuctl.spec.document import Key, Place
from gpuctl.spec.fields import shown
from gpuctl.spec.job import Job
from gpuctl.spec.nearest import suggestion
from gpuctl.spec.sections import OnOom
from gpuctl.spec.shelltext import SimpleCommand, in_background, simple_commands, takes_arguments
from gpuctl.wire import braces

Problem = tuple[Place, str]

_OURS = ("GPUCTL_RUN", "GPUCTL_ATTEMPT", "GPUCTL_DIR")
_DETACHING = ("nohup", "setsid", "screen", "disown", "daemonize")
_SAY_GPUS = "say which by gpus: [2, 3]; gpuctl sets CUDA_VISIBLE_DEVICES itself"


def faults_of(job: Job, unsound: Collection[Key] = ()) -> Iterator[Problem]:
    """Every contradiction among the keys that are sound."""
    for reads, check in CHECKS:
        if not set(reads) & set(unsound):
            yield from check(job)


def command_stays(job: Job) -> Iterator[Problem]:
    """A command that detaches itself would end at once, as far as anyone can see."""
    place: Place = ("command",)
    for command in simple_commands(job.command):
        if command.name in _DETACHING or _detached_tmux(command):
            message = f"{command.name} detaches the command, which is what gpuctl does itself: leave it away"
            yield place, message
            return
    if in_background(job.command):
        yield place, "the & at its end detaches the command, which is what gpuctl does itself: leave it away"


def _detached_tmux(command: SimpleCommand) -> bool:
    return command.name == "tmux" and any(word.startswith("new") for word in command.arguments)


def gpus_are_ours_to_choose(job: Job) -> Iterator[Problem]:
    name = "CUDA_VISIBLE_DEVICES"
    if name in job.env:
        yield ("env", name), f"the job may not set it: {_SAY_GPUS}"
    if name in job.secrets:
        yield ("secrets", job.secrets.index(name)), f"the job may not set it: {_SAY_GPUS}"
    for key, text in (("setup", job.setup), ("command", job.command)):
        if any(name in command.assigned for command in simple_commands(text)):
            yield (key,), f"sets {name}: {_SAY_GPUS}"


def environment_is_consistent(job: Job) -> Iterator[Problem]:
    for name in _OURS:
        if name in job.env:
            yield ("env", name), "gpuctl sets it itself: take another name"
    for index, name in enumerate(job.secrets):
        if name in job.env:
            yield ("secrets", index), f"{name} is in env too: keep it in one of them"
        if name in job.secrets[:index]:
            yield ("secrets", index), f"{name} is named twice"


def params_have_free_names(job: Job) -> Iterator[Problem]:
    for name in job.params:
        if name in (*braces.BUILT_IN, "latest", "resume"):
            yield ("params", name), f"{{{name}}} is gpuctl's own: take another name"


def names_are_known(job: Job) -> Iterator[Problem]:
    for template in job.templates():
        known = [*job.params, *braces.BUILT_IN, *template.extra]
        for name in braces.names(template.text):
            if name not in known:
                yield template.place, str(braces.UnknownName(name, known))


def ladder_names_params(job: Job) -> Iterator[Problem]:
    """What gives way is a number, and giving way must change something."""
    if job.on_oom is None:
        return
    giving = _giving(job.on_oom)
    if not giving:
        yield ("on_oom", "reduce"), "is missing; expected the parameter that gives way, or several in their order"
    for key in ("reduce", "keep_product", "at_load"):
        names: list[str] = getattr(job.on_oom, key)
        for name in names:
            for message in _unfit_param(job, name):
                yield ("on_oom", key), message
        if len(set(names)) != len(names):
            yield ("on_oom", key), f"names one parameter twice: {', '.join(names)}"
    if len(job.on_oom.keep_product) == 1:
        yield ("on_oom", "keep_product"), "expected two parameters or more, whose product stays the same"
    for key in ("known_good", "floor", "multiple_of", "values"):
        for name in getattr(job.on_oom, key):
            if name not in giving:
                hint = suggestion(name, giving, kind="what gives way is")
                yield ("on_oom", key, name), f"{name} does not give way; {hint}"


def _giving(on_oom: OnOom) -> list[str]:
    """Every parameter that may give way, each once."""
    return list(dict.fromkeys([*on_oom.reduce, *on_oom.at_load]))


def _unfit_param(job: Job, name: str) -> Iterator[str]:
    if name not in job.params:
        yield f"{name} is no parameter; {suggestion(name, job.params, kind='params has')}"
        return
    value = job.params[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        yield f"{name} must be a number to give way, and is {shown(value)}"


def reduced_params_are_used(job: Job) -> Iterator[Problem]:
    if job.on_oom is None:
        return
    used = {name for template in job.templates() for name in braces.names(template.text)}
    for name in _giving(job.on_oom):
        if name not in used and not any(_unfit_param(job, name)):
            key = "reduce" if name in job.on_oom.reduce else "at_load"
            yield ("on_oom", key), f"{name} stands nowhere: write {{{name}}} in command, or nothing would change"


def ladder_can_go_down(job: Job) -> Iterator[Problem]:
    """Each value is above its floor and its multiple, before anything has failed."""
    if job.on_oom is None:
        return
    for name in _giving(job.on_oom):
        value = job.params.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        floor = job.on_oom.floor.get(name, 0)
        good = job.on_oom.known_good.get(name)
        if value <= 0:
            yield ("params", name), f"expected a number above 0, since it gives way, got {value!r}"
        elif value < floor:
            yield ("on_oom", "floor"), f"{floor!r} is above {name}, which is {value!r}"
        if good is not None and good < floor:
            yield ("on_oom", "known_good"), f"{good!r} is below the floor of {name}, {floor!r}"
        multiple, listed = job.on_oom.multiple_of.get(name, 1), job.on_oom.values.get(name)
        if value > 0 and value < job.on_oom.multiple_of.get(name, 0):
            yield ("on_oom", "multiple_of"), f"{multiple} is above {name}, which is {value!r}"
        elif good is not None and listed is not None and good not in listed:
            yield ("on_oom", "known_good"), f"{good!r} is none of the values of {name}"
        elif good is not None and listed is None and isinstance(value, int) and good % multiple:
            yield ("on_oom", "known_good"), f"{good!r} is no multiple of {multiple}, as {name} must be"


def outputs_say_what_happens(job: Job) -> Iterator[Problem]:
    if job.outputs.paths and job.on_oom is not None and job.outputs.on_relaunch is None:
        message = "is missing; with paths and on_oom.reduce it must be said what happens to them: keep or archive"
        yield ("outputs", "on_relaunch"), message


def endings_need_progress(job: Job) -> Iterator[Problem]:
    """Silence alone proves nothing: only a job whose progress is known may be ended for having none."""
    for key in ("stall", "low_power"):
        finding = getattr(job.watch, key)
        if finding is not None and finding.action != "alert" and job.watch.progress is None:
            yield ("watch", key, "action"), f"{finding.action} needs watch.progress: without it only alert is possible"
    for cls in ("stalled", "low_power"):
        if job.policy.get(cls, "alert") != "alert" and job.watch.progress is None:
            yield ("policy", cls), "needs watch.progress: without it only alert is possible"


def resume_reaches_the_command(job: Job) -> Iterator[Problem]:
    """What is appended behind a pipeline or a list would be another command's arguments."""
    if job.resume is not None and "resume" not in braces.names(job.command) and not takes_arguments(job.command):
        message = (
            "is more than one plain command: write {resume} where resume.append belongs (nothing without checkpoint)"
        )
        yield ("command",), message


CHECKS: Iterable[tuple[tuple[str, ...], Callable[[Job], Iterator[Problem]]]] = (
    (("command",), command_stays),
    (("env", "secrets", "setup", "command"), gpus_are_ours_to_choose),
    (("env", "secrets"), environment_is_consistent),
    (("params",), params_have_free_names),
    (("params", "command", "workdir", "env", "outputs", "watch", "resume"), names_are_known),
    (("params", "on_oom"), ladder_names_params),
    (("params", "on_oom", "command", "workdir", "env", "outputs", "watch", "resume"), reduced_params_are_used),
    (("params", "on_oom"), ladder_can_go_down),
    (("outputs", "on_oom"), outputs_say_what_happens),
    (("watch", "policy"), endings_need_progress),
    (("command", "resume"), resume_reaches_the_command),
)
