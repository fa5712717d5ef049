"""`replay --policy FILE`: a whole job file, or only the keys of one that decide what is found and what is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gpuctl.errors import BadFile, Fault
from gpuctl.spec import document, faults
from gpuctl.spec.fields import Section, SomeTime
from gpuctl.spec.job import Job, from_document
from gpuctl.spec.render import budget, on_oom, watch
from gpuctl.spec.sections import Answer, OnOom, Relaunches, Watch
from gpuctl.wire.names import FailureClass


class Policy(Section):
    """The part of a job file that a recorded run can be judged by anew."""

    type: Literal["task", "service"] = "task"
    """a service never ends by itself: if it does, that is a failure"""
    timeout: SomeTime | None = None
    """how long each attempt may take"""
    on_oom: OnOom | None = None
    """what gives way when GPU memory runs out"""
    on_failure: Relaunches = Field(default_factory=Relaunches)
    """how often to try again after failures that a second try can cure"""
    policy: dict[FailureClass, Answer] = Field(default_factory=dict)
    """what to do by failure class, over the built-in table"""
    watch: Watch = Field(default_factory=Watch)
    """what to look at, beside the log and the GPUs"""


def load_policy(path: Path) -> dict[str, Any]:
    """The keys of a run spec that the file changes, as JSON. Raises `BadFile` with every fault of the file."""
    found = document.read(path, kind="policy file")
    if isinstance(found.data, dict) and "command" in found.data:
        job = from_document(found)
        return _changes(job, set(Policy.model_fields))  # what a whole job does not say, it leaves at its default
    if not isinstance(found.data, dict) or not found.data:
        expected = f"expected a job file, or some of its keys: {', '.join(Policy.model_fields)}"
        raise BadFile([*found.faults, Fault(found.file, None, "", expected)])
    wrong = list(found.faults)
    try:
        policy = Policy(**found.data)
    except ValidationError as error:
        wrong += faults.from_validation(error, found, Policy)
    if wrong:
        raise BadFile(sorted(wrong, key=lambda fault: fault.line or 0))
    return _changes(policy, set(found.data))


def _changes(section: Job | Policy, keys: set[str]) -> dict[str, Any]:
    whole: dict[str, tuple[str, Any]] = {
        "type": ("type", section.type),
        "timeout": ("timeout_s", section.timeout),
        "on_oom": ("on_oom", on_oom(section.on_oom).to_json() if section.on_oom else None),
        "on_failure": ("on_failure", budget(section.on_failure).to_json()),
        "policy": ("policy", {name: _answer(answer) for name, answer in section.policy.items()}),
        "watch": ("watch", watch(section.watch).to_json()),
    }
    return {name: value for key, (name, value) in whole.items() if key in keys}


def _answer(answer: str | Relaunches) -> str | dict[str, Any]:
    return answer if isinstance(answer, str) else budget(answer).to_json()
