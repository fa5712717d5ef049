"""`Word`: a dataclass whose JSON form is its fields by name.

Written by hand, not by annotations, because annotations are not evaluated on the node (Python 3.8 can't).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, Mapping, Type, TypeVar

W = TypeVar("W", bound="Word")


class Word:
    """Base of every word. A field that holds a word, a list of them or a mapping to them is named in `NESTED`."""

    NESTED: ClassVar[Mapping[str, Type["Word"]]] = {}
    __dataclass_fields__: ClassVar[Dict[str, Any]]

    def to_json(self) -> Dict[str, Any]:
        """Its fields as plain JSON values; nested words as objects."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls: Type[W], data: Mapping[str, Any]) -> W:
        """The word from its JSON form. Unknown keys (a newer peer's) are ignored, missing ones take their default.

        Raises `TypeError` or `KeyError` where a required field is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: _nested(cls.NESTED.get(key), value) for key, value in data.items() if key in known})


def _plain(value: Any) -> Any:
    if isinstance(value, Word):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _nested(kind: Any, value: Any) -> Any:
    if kind is None or value is None:
        return value
    if isinstance(value, list):
        return [kind.from_json(item) for item in value]
    return kind.from_json(value)
