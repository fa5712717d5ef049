"""The types that both files' keys are made of, each with one sentence for whoever wrote something else there.

A type with several forms (a number or a list, a text or a list) is one validator with one message: a union would answer
with one error for each of its members.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from gpuctl.spec import durations
from gpuctl.wire.names import State


class Section(BaseModel):
    """Base of every mapping in a file: unknown keys are errors, nothing is converted silently, all is frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


def shown(value: Any) -> str:
    """A value in a message: what was found there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text {value[:60]!r}"
    if isinstance(value, (int, float)):
        return repr(value)
    return "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"


def _duration(value: Any) -> float:
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"{durations.EXPECTED}, got {shown(value)}")
    return durations.seconds(value)


def _some_time(value: float) -> float:
    if value <= 0:
        raise ValueError("expected a duration above zero")
    return value


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(durations.text),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": durations.PATTERN}]}),
]
"""Seconds."""

SomeTime = Annotated[Duration, AfterValidator(_some_time)]
"""A duration that can't be zero."""


def scalar(value: Any) -> str | int | float | bool:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    if isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"expected text, a number, true or false, got {shown(value)}")


Scalar = Annotated[Any, BeforeValidator(scalar), WithJsonSchema({"type": ["string", "number", "boolean"]})]

Written = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]
"""Text that may stand in the file without quotes, whatever it looks like: 1.10 is "1.10" (`Document.texts`)."""


def number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"expected a number, got {shown(value)}")
    return value


Number = Annotated[Any, BeforeValidator(number), WithJsonSchema({"type": "number"})]


def _texts(value: Any) -> Any:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise ValueError(f"expected a text or a list of texts, got {shown(value)}")
    return values


Texts = Annotated[
    list[str],
    BeforeValidator(_texts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""One text is a list of one."""

_INDICES = "a list of GPU indices such as [0, 1]"


def indices(value: Any) -> list[int]:
    """GPU indices: not negative, none twice."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected {_INDICES}, got {shown(value)}")
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int) or each < 0:
            raise ValueError(f"expected {_INDICES}, got {shown(each)} in it")
    if len(set(value)) != len(value):
        raise ValueError(f"expected {_INDICES}, got one of them twice: {value}")
    return value


def gpus(value: Any) -> int | str | list[int]:
    if value == "all":
        return "all"
    if isinstance(value, list):
        return indices(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"expected how many GPUs (0 = none), which ({_INDICES}), or all, got {shown(value)}")


def _own_gpus(value: Any) -> list[int] | None:
    return None if value in ("all", None) else indices(value)


_INDICES_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "uniqueItems": True}

Gpus = Annotated[
    Any,
    BeforeValidator(gpus),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "all"}, _INDICES_SCHEMA]}),
]
"""How many, which, or "all"."""

OwnGpus = Annotated[Any, BeforeValidator(_own_gpus), WithJsonSchema({"anyOf": [{"const": "all"}, _INDICES_SCHEMA]})]
"""Which cards of a node are ours to use; None: all."""


def matching(pattern: str, expected: str) -> Any:
    """A validator of texts that match `pattern` from end to end."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"expected {expected}, got {value!r}")
        return value

    return AfterValidator(check)


_JOB_NAME = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"

JobName = Annotated[
    str,
    matching(_JOB_NAME, "a name of a-z, 0-9 and - (at most 63), such as eagle3-extract"),
    WithJsonSchema({"type": "string", "pattern": f"^{_JOB_NAME}$"}),
]
EnvName = Annotated[str, matching("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
ParamName = Annotated[str, matching("[A-Za-z_][A-Za-z0-9_]*", "a name of letters, digits and _, such as batch_size")]


def _some(value: str) -> str:
    if not value.strip():
        raise ValueError("expected some text, got none")
    if "\0" in value:
        raise ValueError("expected text without NUL characters")
    return value


Text = Annotated[str, AfterValidator(_some)]
"""A text that is not empty."""


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError) as error:
        raise ValueError(f"expected a regular expression (Python's), got {value!r}: {error}") from error
    return value


Regex = Annotated[Text, AfterValidator(_regex), WithJsonSchema({"type": "string", "format": "regex"})]


class Callback(Section):
    """A shell line that runs on the node when a run reaches one of these states."""

    when: Annotated[list[State], Field(min_length=1)]
    """the states of a run that call it"""
    run: Text
    """the shell line; $GPUCTL_RUN, $GPUCTL_STATE and $GPUCTL_WHY are set for it"""


Launcher = Literal["nohup", "tmux"]
