"""A YAML file with its line numbers.

PyYAML composes the tree; its values are made here, because three things must be ours: scalars are those of YAML 1.2's
core schema (3e-5 is a number; on, no and 1:30:00 are text), a key that stands twice is a fault, and each value
remembers its line, so that a fault found much later can still name it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from gpuctl.errors import BadFile, Fault, UsageError

Key = str | int
Place = tuple[Key, ...]

MAX_VALUES = 20_000
"""More values than any real file has: aliases of aliases could otherwise fill the memory."""

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

Scalar = str | int | float | bool | None


def scalar(text: str) -> Scalar:
    """A plain (unquoted) scalar by YAML 1.2's core schema."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)
    if FLOAT.fullmatch(text):
        return float(text.replace(".inf", "inf").replace(".nan", "nan") if text[-1] in "fFnN" else text)
    return text


class Document:
    """One parsed file: `data`, and where each value in it stands. `faults` are those of the YAML itself."""

    def __init__(self, file: str, root: yaml.Node | None) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self._lines: dict[Place, int] = {}
        self._texts: dict[Place, str] = {}
        self._open: set[int] = set()  # nodes under construction: an alias to one of them is a loop
        self.data: Any = None if root is None else self._value(root, ())

    def line(self, place: Place) -> int | None:
        """The line of the value at `place`, or of the nearest one above it that is written in the file."""
        for length in range(len(place), -1, -1):
            if place[:length] in self._lines:
                return self._lines[place[:length]]
        return None

    def texts(self, place: Place, section: dict[str, Any]) -> dict[str, Any]:
        """`section`, which stands at `place`, with its scalars as they are written: for keys whose values are text."""
        return {
            key: self._texts.get((*place, key), value) if isinstance(value, (bool, int, float)) else value
            for key, value in section.items()
        }

    def fault(self, place: Place, message: str) -> Fault:
        return Fault(self.file, self.line(place), dotted(place), message)

    def _value(self, node: yaml.Node, place: Place) -> Any:
        self._lines.setdefault(place, node.start_mark.line + 1)
        if len(self._lines) > MAX_VALUES:
            raise BadFile(
                [Fault(self.file, None, "", f"holds more than {MAX_VALUES} values (aliases count each time)")]
            )
        if id(node) in self._open:
            self.faults.append(self.fault(place, "an alias to itself"))
            return None
        self._open.add(id(node))
        try:
            return self._construct(node, place)
        finally:
            self._open.discard(id(node))

    def _construct(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*place, index)) for index, item in enumerate(node.value)]
        self._texts[place] = node.value
        return self._scalar(node, place)

    def _scalar(self, node: yaml.Node, place: Place) -> Scalar:
        text: str = node.value
        if node.tag == _PLAIN or node.tag in _CORE_TAGS:
            return scalar(text)
        if node.tag == "tag:yaml.org,2002:str":
            return text
        self.faults.append(self.fault(place, f"the tag {node.tag} is not known here: write the value without it"))
        return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(
                    Fault(self.file, line, dotted(place), "expected a name as key, not a list or mapping")
                )
                continue
            key: str = key_node.value
            inner = (*place, key)
            if key in found:
                message = f"stands twice: already in line {self._lines[inner]}"
                self.faults.append(Fault(self.file, line, dotted(inner), message))
                continue
            self._lines[inner] = line
            found[key] = self._value(value_node, inner)
        return found


_PLAIN = "tag:gpuctl,2026:plain"
_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null")}


class _Composer(yaml.SafeLoader):
    """Leaves plain scalars unresolved: what they mean is `scalar`'s to say."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else "tag:yaml.org,2002:str"
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call, no-any-return]


def parse(text: str, file: str) -> Document:
    """Raises `BadFile` where it is no YAML at all."""
    try:
        return Document(file, yaml.compose(text, Loader=_Composer))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"not YAML: the character U+{error.character:04X} may not stand there"
        raise BadFile([Fault(file, line, "", message)]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise BadFile([Fault(file, mark.line + 1 if mark else None, "", f"not YAML: {why}")]) from error
    except RecursionError:
        raise BadFile([Fault(file, None, "", "nested too deeply")]) from None


def read(path: Path, *, kind: str) -> Document:
    """The file at `path`. `kind` ("job file", "inventory") is for the message where there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such {kind}") from None
    except OSError as error:
        raise UsageError(f"{path}: the {kind} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadFile([Fault(str(path), line, "", "not UTF-8: save the file in that encoding")]) from error
    return parse(text, str(path))


_EMPTY = "''"


def dotted(place: Place) -> str:
    """`("watch", "logs", 0)` → `watch.logs[0]`; a key without characters shows as quotes."""
    text = ""
    for key in place:
        text += f"[{key}]" if isinstance(key, int) else f"{'.' if text else ''}{key or _EMPTY}"
    return text
