"""The nested mappings of a job file: what each key takes. `gpuctl.spec.job` has the file itself."""

from __future__ import annotations

import signal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from gpuctl.spec.fields import Duration, Number, ParamName, Regex, Section, SomeTime, Text, Texts, number, shown
from gpuctl.spec.nearest import suggestion

_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ABRT", "KILL")


def _signal(value: Any) -> str:
    name = str(value).upper().removeprefix("SIG")
    if name.isdigit() and int(name) in set(signal.Signals):
        name = signal.Signals(int(name)).name.removeprefix("SIG")
    if name not in _SIGNALS:
        hint = suggestion(name, _SIGNALS, kind="those that make sense are")
        raise ValueError(f"expected the name of a signal, got {shown(value)}; {hint}")
    return name


def _by_name(expected: str) -> Any:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"expected {expected} for each parameter ({{batch_size: …}}), got {shown(value)}")
        return value

    return BeforeValidator(check)


def _numbers_by_name(schema: dict[str, Any], expected: str) -> Any:
    either = {"anyOf": [schema, {"type": "object", "additionalProperties": schema}]}
    return _by_name(expected), WithJsonSchema(either)


def _ladder(value: Any) -> list[int | float]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a list of numbers, got {shown(value)}")
    return [number(each) for each in value]


class Stop(Section):
    """How an attempt is asked to end."""

    signal: Annotated[str, BeforeValidator(_signal), WithJsonSchema({"enum": list(_SIGNALS)})] = "TERM"
    """the signal that the job's first process gets"""
    grace: Duration = 30.0
    """how long it may take before everything of it is killed"""


class OnOom(Section):
    """What gives way when GPU memory runs out."""

    reduce: Annotated[Texts, Field(min_length=1)] = Field(default_factory=list)
    """the parameter, or several in the order in which to give way"""
    known_good: Annotated[dict[ParamName, Number], *_numbers_by_name({"type": "number"}, "a number")] = Field(
        default_factory=dict
    )
    """a value that is known to fit"""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """what a value is multiplied with to get the next"""
    floor: Annotated[dict[ParamName, Number], *_numbers_by_name({"type": "number"}, "a number")] = Field(
        default_factory=dict
    )
    """the least value to go down to; 1 if left out"""
    multiple_of: Annotated[
        dict[ParamName, Annotated[int, Field(ge=1)]],
        *_numbers_by_name({"type": "integer", "minimum": 1}, "a whole number"),
    ] = Field(default_factory=dict)
    """values are rounded down to a multiple of this"""
    values: Annotated[
        dict[ParamName, Annotated[list[Any], BeforeValidator(_ladder)]],
        *_numbers_by_name({"type": "array", "items": {"type": "number"}}, "a list of numbers"),
    ] = Field(default_factory=dict)
    """the values to try, instead of multiplying"""
    keep_product: Texts = Field(default_factory=list)
    """parameters whose product stays what it was: batch size and accumulation"""
    at_load: Texts = Field(default_factory=list)
    """the parameters that give way when memory runs out while the model loads"""
    max_relaunches: Annotated[int, Field(ge=0)] = 6
    """how often, before the run is blocked"""
    max_lost: SomeTime | None = None
    """how much work one such failure may lose before a person should decide"""
    resume_changed: bool = False
    """whether a checkpoint may be resumed with a changed parameter"""

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, data: Any) -> Any:
        """One number instead of a mapping: for every parameter that gives way, where that is no guess.

        A floor and a multiple can be meant for several; a value known to fit, or a ladder, belongs to one.
        """
        if not isinstance(data, dict):
            return data
        given = data.get("reduce", data.get("at_load"))
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return data
        plain = ["floor", "multiple_of", *(["known_good", "values"] if len(names) == 1 else [])]
        spread = {
            key: dict.fromkeys(names, data[key])
            for key in plain
            if key in data and isinstance(data[key], (int, float, list))
        }
        return data | spread


class Relaunches(Section):
    """A budget of relaunches for failures that a second try can cure."""

    relaunch: Annotated[int, Field(ge=0)] = 0
    """how often"""
    backoff: Duration = 30.0
    """the pause before each"""


def _answer_kind(value: Any) -> str:
    return "<word>" if isinstance(value, str) else "<budget>"


Answer = Annotated[
    Annotated[Literal["stop", "alert"], Tag("<word>")] | Annotated[Relaunches, Tag("<budget>")],
    Discriminator(_answer_kind),
]
"""What `policy` says for one failure class: stop, alert, or a budget of relaunches."""


class OnBusy(Section):
    """What to do when others hold the GPUs between attempts."""

    wait: Duration = 3600.0
    """how long to wait before the run is blocked"""


class Resume(Section):
    """How the next attempt goes on from a checkpoint."""

    when: Text
    """the files that are checkpoints, as a glob relative to workdir"""
    append: Text
    """what to append to the command then; {latest} is the newest one"""


class Outputs(Section):
    """What the job writes, and what happens to it before a relaunch."""

    paths: Texts = Field(default_factory=list)
    """files and folders, relative to workdir"""
    on_relaunch: Literal["keep", "archive"] | None = None
    """keep them, or archive: rename them beside themselves; nothing is ever deleted"""


FindingAction = Literal["alert", "relaunch", "kill"]


class Stall(Section):
    """When a silent job counts as stalled."""

    for_: SomeTime = Field(alias="for")
    """how long there is no sign of life"""
    action: FindingAction = "alert"
    """what to do; relaunch and kill need watch.progress"""


class LowPower(Section):
    """When a job that progresses draws suspiciously little power."""

    below: Annotated[float, Field(gt=0, le=1)] = 0.5
    """a share of the power limit"""
    for_: SomeTime = Field(default=300.0, alias="for")
    """how long"""
    action: FindingAction = "alert"
    """what to do; relaunch and kill need watch.progress"""


class Watch(Section):
    """What to look at, beside the log and the GPUs."""

    logs: Texts = Field(default_factory=list)
    """files that the job writes itself, as globs relative to workdir: followed and judged like its output"""
    ready: Regex | None = None
    """a line that says that loading is over"""
    ready_within: SomeTime | None = None
    """how long loading may take"""
    progress: Regex | None = None
    """a line that shows progress, with the groups (?P<done>…) and (?P<total>…)"""
    done: Regex | None = None
    """a line that says that the job ended well"""
    stall: Stall | None = None
    """when a silent job counts as stalled"""
    low_power: LowPower | None = None
    """when a job that progresses draws too little power"""
