"""A job as YAML: what `launch --dry-run` prints. Loading it gives the same job."""

from __future__ import annotations

import re
from typing import Any

import yaml

from gpuctl.spec.document import FLOAT
from gpuctl.spec.job import Job


class _Writer(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else, so that any reader gets the same job."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_OTHER_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
"""PyYAML writes these as they are and reads them as line breaks: only escapes keep them."""


def _text(writer: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if _OTHER_BREAKS.search(value) else "|" if "\n" in value else None
    return writer.represent_scalar("tag:yaml.org,2002:str", value, style)


_Writer.add_representer(str, _text)
_Writer.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{FLOAT.pattern})\Z"), list("-+.0123456789"))


class _Number(float):
    """A number that is to stand there as it was written."""

    text: str


def _number(writer: yaml.SafeDumper, value: _Number) -> yaml.ScalarNode:
    return writer.represent_scalar("tag:yaml.org,2002:float", value.text)


_Writer.add_representer(_Number, _number)


def to_yaml(job: Job) -> str:
    """The job file that describes `job`, with what differs from the defaults."""
    data = job.model_dump(by_alias=True, exclude_defaults=True)
    for name, text in job.written.items():
        number = data["params"][name] = _Number(job.params[name])
        number.text = text
    return yaml.dump(data, Dumper=_Writer, sort_keys=False, width=10_000, allow_unicode=True)
