"""jobs/*.yaml: one job, as its file describes it, checked as a whole.

All faults of a file are found at once: those of the YAML, of single keys (pydantic), and of keys that contradict each
other (`gpuctl.spec.checks`), the last as far as the keys that they read are sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, PrivateAttr, ValidationError

from gpuctl.errors import BadFile, Fault
from gpuctl.spec import document, faults
from gpuctl.spec.document import Document, Key, Place
from gpuctl.spec.fields import (
    Callback,
    EnvName,
    Gpus,
    JobName,
    Launcher,
    ParamName,
    Scalar,
    Section,
    SomeTime,
    Text,
    Written,
)
from gpuctl.spec.nearest import nearest
from gpuctl.spec.sections import Answer, OnBusy, OnOom, Outputs, Relaunches, Resume, Stop, Watch
from gpuctl.wire.names import FailureClass


class Template(NamedTuple):
    """A text with braces, where it stands, and the names that are known only there."""

    place: Place
    text: str
    extra: tuple[str, ...] = ()


class Job(Section):
    """A job file."""

    name: JobName
    """the job's name; its runs are called <name>-<suffix>"""
    node: Text | None = None
    """the inventory's node to run on; --on overrides it"""
    gpus: Gpus = 1
    """how many GPUs, or which: [0, 1]; all; 0 for none"""
    workdir: Text = "~"
    """the folder on the node to run in, relative to home there; it must exist"""
    setup: str = ""
    """shell lines before the command, in the same shell, at every attempt"""
    command: Text
    """the shell text to run; {name} stands for a parameter"""
    params: dict[ParamName, Scalar] = Field(default_factory=dict)
    """the parameters that stand in braces elsewhere; --set changes them"""
    env: dict[EnvName, Written] = Field(default_factory=dict)
    """the job's environment, beside the login shell's"""
    secrets: list[EnvName] = Field(default_factory=list)
    """names of variables to take from the caller's environment"""
    type: Literal["task", "service"] = "task"
    """a service never ends by itself: if it does, that is a failure"""
    launcher: Launcher | None = None
    """how the run is detached; the node's if left out"""
    timeout: SomeTime | None = None
    """how long each attempt may take"""
    stop: Stop = Field(default_factory=Stop)
    """how an attempt is asked to end"""
    share: bool = False
    """whether others may use the same GPUs at the same time"""
    on_oom: OnOom | None = None
    """what gives way when GPU memory runs out"""
    on_failure: Relaunches = Field(default_factory=Relaunches)
    """how often to try again after failures that a second try can cure"""
    policy: dict[FailureClass, Answer] = Field(default_factory=dict)
    """what to do by failure class, over the built-in table"""
    on_busy: OnBusy = Field(default_factory=OnBusy)
    """what to do when others hold the GPUs between attempts"""
    resume: Resume | None = None
    """how the next attempt goes on from a checkpoint"""
    outputs: Outputs = Field(default_factory=Outputs)
    """what the job writes"""
    watch: Watch = Field(default_factory=Watch)
    """what to look at, beside the log and the GPUs"""
    callback: Callback | None = None
    """a shell line to run on the node at these states"""
    observe: bool = False
    """judge and journal everything, do nothing"""

    _written: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def written(self) -> dict[str, str]:
        """Numbers among the parameters as they were written, where Python writes them otherwise: 1e3, 1000.0."""
        return self._written

    def with_params(self, params: dict[str, Any], written: dict[str, str]) -> Job:
        """With other parameters; `written` has the texts of those that came as text."""
        changed = self.model_copy(update={"params": params})
        changed._written = as_written(params, written)
        return changed

    def templates(self) -> Iterator[Template]:
        """Every text in which braces mean something."""
        yield Template(("command",), self.command, ("resume",) if self.resume is not None else ())
        yield Template(("workdir",), self.workdir)
        yield from (Template(("env", name), value) for name, value in self.env.items())
        yield from (Template(("outputs", "paths", index), path) for index, path in enumerate(self.outputs.paths))
        yield from (Template(("watch", "logs", index), glob) for index, glob in enumerate(self.watch.logs))
        if self.resume is not None:
            yield Template(("resume", "when"), self.resume.when)
            yield Template(("resume", "append"), self.resume.append, ("latest",))


def as_written(params: Mapping[str, Any], texts: Mapping[str, Any]) -> dict[str, str]:
    """The texts of numbers that Python would write in another way."""
    return {
        name: text
        for name, text in texts.items()
        if isinstance(params.get(name), float) and isinstance(text, str) and text != repr(params[name])
    }


def load_job(path: Path) -> Job:
    """Raises `BadFile` with every fault of the file, `UsageError` where it can't be read."""
    return from_document(document.read(path, kind="job file"))


def from_document(found: Document) -> Job:
    """The job that a parsed file (or a command line) describes. Raises `BadFile`."""
    from gpuctl.spec.checks import faults_of  # the checks read `Job`; `load_job` is what people call

    if not isinstance(found.data, dict):
        raise BadFile([*found.faults, Fault(found.file, None, "", "expected the keys of a job (name: …, command: …)")])
    data = dict(found.data)
    if isinstance(data.get("env"), dict):
        data["env"] = found.texts(("env",), data["env"])
    wrong = list(found.faults)
    try:
        job, unsound = Job(**data), set[Key]()
    except ValidationError as error:
        wrong.extend(faults.from_validation(error, found, Job))
        job, unsound = _sound_part(data, error)
    wrong.extend(found.fault(place, message) for place, message in faults_of(job, unsound))
    if wrong:
        raise BadFile(sorted(wrong, key=lambda fault: fault.line or 0))
    return job.with_params(job.params, found.texts(("params",), job.params))


def _sound_part(data: dict[str, Any], error: ValidationError) -> tuple[Job, set[Key]]:
    """The job without its unsound top-level keys, and which those are: so that what is left can still be checked.

    An unknown key may be a known one misspelt, which is then missing: that one counts as unsound too.
    """
    unsound: set[Key] = set()
    for details in error.errors():
        top = details["loc"][0]
        unsound.add(top)
        if details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
            unsound.add(nearest(str(top), Job.model_fields) or top)
    sound = {key: value for key, value in data.items() if key not in unsound}
    return Job(**({"name": "unsound", "command": "true"} | sound)), unsound
