"""Reads `wordings.txt`: logs with what each must come to."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Wording(NamedTuple):
    name: str
    cls: str | None
    fatal: bool
    reducible: bool
    log: str


def wordings() -> list[Wording]:
    text = Path(__file__).with_name("wordings.txt").read_text(encoding="utf-8")
    return [_wording(part) for part in text.split("\n@@ ")[1:]]


def _wording(part: str) -> Wording:
    header, _, log = part.partition("\n")
    name, _, told = header.rpartition(": ")
    cls, *words = told.split()
    return Wording(name, None if cls == "-" else cls, "fatal" in words, "reducible" in words, log)
