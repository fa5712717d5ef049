"""The one template language of a job file: `{name}` and nothing else.

Shell text and JSON are full of braces, so only `{identifier}` means something here: a known name is replaced, an
unknown one is an error (a typo must not reach the shell). `{{name}}` gives `{name}`; `${VAR}` and every other brace
stay as written. The controller checks the names, the node fills the values in for each attempt: both by this module.
"""

from __future__ import annotations

import difflib
import re
import shlex
from typing import Callable, Collection, List, Mapping

from gpuctl.wire.runspec import Scalar

IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_BRACES = re.compile(r"\{\{(?P<literal>%s)\}\}|(?<!\$)\{(?P<name>%s)\}" % (IDENTIFIER, IDENTIFIER))
_REPLACEABLE = re.compile(r"(?<!\$)\{%s\}" % IDENTIFIER)

BUILT_IN = ("run", "job", "attempt", "gpus", "port")
"""Names that every template knows besides the job's params."""


class UnknownName(ValueError):
    """A `{name}` that nothing is known by. `nearest` is None where nothing resembles it."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        self.name = name
        near = difflib.get_close_matches(name, sorted(known), n=1)
        self.nearest = near[0] if near else None
        if self.nearest is not None:
            hint = "did you mean {%s}?" % self.nearest
        else:
            hint = "known are %s" % ", ".join("{%s}" % each for each in sorted(known))
        super().__init__("{%s} is not a known name: %s ({{%s}} gives {%s} as it stands)" % (name, hint, name, name))


def render(template: str, values: Mapping[str, Scalar], *, quote: bool) -> str:
    """`template` with each `{name}` replaced by its value, shell-quoted where `quote`. Raises `UnknownName`.

    A value is never looked at for braces again.
    """

    def fill(name: str) -> str:
        if name not in values:
            raise UnknownName(name, values)
        text = plain(values[name])
        return shlex.quote(text) if quote else text

    return _replace(template, fill)


def names(template: str) -> List[str]:
    """The names that `template` asks for, in order, each once."""
    found: List[str] = []

    def note(name: str) -> str:
        if name not in found:
            found.append(name)
        return ""

    _replace(template, note)
    return found


def escape(text: str) -> str:
    """A template that renders to `text` exactly."""
    return _REPLACEABLE.sub(lambda match: "{%s}" % match.group(), text)


def plain(value: Scalar) -> str:
    """A value as a command line has it: true and false in lower case, numbers as Python writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _replace(template: str, fill: Callable[[str], str]) -> str:
    def one(match: "re.Match[str]") -> str:
        literal = match.group("literal")
        return "{%s}" % literal if literal is not None else fill(match.group("name"))

    return _BRACES.sub(one, template)
