"""pydantic's errors as `Fault`s: file, line, key and what was expected, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpuctl.errors import Fault
from gpuctl.spec.document import Document, Place
from gpuctl.spec.fields import shown
from gpuctl.spec.nearest import nearest, suggestion

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
}


def from_validation(
    error: ValidationError, document: Document, model: type[BaseModel], under: Place = ()
) -> list[Fault]:
    """Each error of validating the value at `under` of `document` against `model`, in the order of the file."""
    return [document.fault(under + place(details), message(details, model)) for details in error.errors()]


def place(details: ErrorDetails) -> Place:
    """Where it is in the file. Parts in brackets are pydantic's own: a mapping's key, a union's member."""
    return tuple(part for part in details["loc"] if not (isinstance(part, str) and part[:1] in ("[", "<")))


def message(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context, found = details["type"], details.get("ctx", {}), details["input"]
    if kind == "extra_forbidden":
        return (
            f"unknown key; {suggestion(str(details['loc'][-1]), _keys(model, place(details)[:-1]), kind='known are')}"
        )
    if kind == "missing":
        return f"is missing; expected {_described(model, place(details))}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {shown(found)}"
    if kind == "literal_error":
        return _one_of(re.findall(r"'([^']*)'", context["expected"]), found)
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        bounds = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
        (limit,) = (f"{bounds[name]} {value:g}" for name, value in context.items() if name in bounds)
        return f"expected a number {limit}, got {shown(found)}"
    if kind == "too_short":
        return "expected at least one, got an empty list"
    return details["msg"]


def _one_of(choices: list[str], found: Any) -> str:
    near = nearest(found, choices) if isinstance(found, str) else None
    hint = f"; did you mean {near}?" if near else ""
    return f"expected one of {', '.join(choices)}, got {shown(found)}{hint}"


def _keys(model: type[BaseModel], where: Place) -> list[str]:
    section = _section(model, where)
    return [field.alias or name for name, field in section.model_fields.items()]


def _described(model: type[BaseModel], where: Place) -> str:
    for name, field in _section(model, where[:-1]).model_fields.items():
        if where[-1] in (name, field.alias):
            return field.description or "a value"
    return "a value"


def _section(model: type[BaseModel], where: Place) -> type[BaseModel]:
    """The model of the mapping at `where`. Keys of plain mappings and indices of lists lead nowhere deeper."""
    for key in where:
        for name, field in model.model_fields.items():
            if key in (name, field.alias):
                model = next(_models(field.annotation), model)
                break
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
