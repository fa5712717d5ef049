"""What a caller asks of a live run: a file in `runs/<run>/requests/`, answered by a `request` event with its id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional

from gpuctl.wire.runspec import Scalar
from gpuctl.wire.word import Word


@dataclass(frozen=True)
class Request(Word):
    """`kind` is kill or relaunch. The same id twice is one request."""

    id: str
    kind: str
    by: str = ""
    grace_s: Optional[float] = None  # kill, relaunch: instead of the job's own
    params: Dict[str, Scalar] = field(default_factory=dict)  # relaunch: the values that change
    written: Dict[str, str] = field(default_factory=dict)  # as in RunSpec
    spec: Optional[Dict[str, object]] = None  # relaunch --job: a whole new run spec
    force: bool = False
