"""A job without a file: `gpuctl launch --on NODE --reduce batch-size -- python train.py --batch-size 64`.

The argv after `--` arrives on the node exactly as it was given; only the value that may give way becomes a parameter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from gpuctl.errors import BadFile, UsageError
from gpuctl.spec import document
from gpuctl.spec.document import Document
from gpuctl.spec.job import Job, from_document
from gpuctl.wire import braces


class _Found(NamedTuple):
    """Where the value of a flag stands: in which word of argv, after which part of it."""

    position: int
    before: str
    value: str


def job_from_argv(
    argv: Sequence[str],
    *,
    reduce: Iterable[str] = (),
    name: str | None = None,
    node: str | None = None,
    gpus: int | str | list[int] | None = None,
    workdir: str | None = None,
    env: Iterable[str] = (),
    secrets: Iterable[str] = (),
    setup: Iterable[str] = (),
    timeout: str | None = None,
    launcher: str | None = None,
    environ: Mapping[str, str],
) -> Job:
    """The job that the command line describes, checked like a file. `env` is `K=V`, or `K` from `environ`.

    `workdir` and `K=V` are what they are in a file: braces mean something there.

    Raises `UsageError`.
    """
    if not argv:
        raise UsageError("nothing to run", "Write the command after --, or name a job file")
    words = [shlex.quote(braces.escape(word)) for word in argv]
    params: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for flag in reduce:
        param, found = _param(flag), _value_of(flag, argv)
        if param in params:
            raise UsageError(f"--reduce {flag}: named twice")
        params[param], texts[param] = _number(flag, found.value), found.value
        words[found.position] = (shlex.quote(braces.escape(found.before)) if found.before else "") + f"{{{param}}}"
    given = {
        "name": name if name is not None else _name(argv),
        "node": node,
        "gpus": gpus,
        "workdir": workdir,
        "setup": "\n".join(setup) or None,
        "command": " ".join(words),
        "params": params or None,
        "env": dict(_variable(each, environ) for each in env) or None,
        "secrets": list(secrets) or None,
        "timeout": timeout,
        "launcher": launcher,
        "on_oom": {"reduce": list(params)} if params else None,
    }
    job = _checked({key: value for key, value in given.items() if value is not None})
    return job.with_params(job.params, texts)


def _checked(data: dict[str, Any]) -> Job:
    command_line = Document("the command line", None)
    command_line.data = data
    try:
        return from_document(command_line)
    except BadFile as error:
        told = [f"{fault.key}: {fault.message}" for fault in error.faults]
        raise UsageError("\n".join(told), error.hint) from error


def _value_of(flag: str, argv: Sequence[str]) -> _Found:
    """The one place where argv gives `flag` a value."""
    found = list(_places(flag, argv))
    if len(found) == 1:
        return found[0]
    how_often = "nowhere" if not found else f"{len(found)} times"
    forms = f"--{flag} V, --{flag}=V, -{flag} V or {flag}=V"
    raise UsageError(
        f"--reduce {flag}: its value must stand once in the command, and stands {how_often}", f"As {forms}"
    )


def _places(flag: str, argv: Sequence[str]) -> Iterable[_Found]:
    wanted = _folded(flag.lstrip("-"))
    for index, word in enumerate(argv[1:], start=1):
        option, equals, value = word.partition("=")
        dashes = len(option) - len(option.lstrip("-"))
        if _folded(option[dashes:]) != wanted:
            continue
        if equals and dashes in (0, 2):
            yield _Found(index, f"{option}=", value)
        elif not equals and dashes in (1, 2) and index + 1 < len(argv):
            yield _Found(index + 1, "", argv[index + 1])


def _folded(flag: str) -> str:
    return flag.replace("_", "-")


def _param(flag: str) -> str:
    """A parameter's name for a flag: batch-size → batch_size; names that gpuctl takes get a `_`."""
    name = re.sub(r"\W", "_", flag.lstrip("-"), flags=re.ASCII)
    taken = name in (*braces.BUILT_IN, "latest")
    return f"{name}_" if taken else f"_{name}" if not name[:1].isidentifier() else name


def _number(flag: str, text: str) -> int | float:
    value = document.scalar(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"--reduce {flag}: its value must be a number to give way, and is {text!r}")
    return value


def _variable(given: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if equals:
        return name, value
    if name not in environ:
        raise UsageError(f"--env {name}: not in your environment", f"Export it, or write --env {name}=VALUE")
    return name, braces.escape(environ[name])


def _name(argv: Sequence[str]) -> str:
    """A name for the job: the script's or module's, else the program's."""
    chosen = next((word for word in argv if re.search(r"\.(py|sh|bash)$", word)), argv[0])
    if chosen == argv[0] and "-m" in argv[:-1]:
        chosen = argv[argv.index("-m") + 1].rpartition(".")[2]
    stem = re.sub(r"\.(py|sh|bash)$", "", PurePosixPath(chosen).name)
    return re.sub(r"[^a-z0-9]+", "-", stem.lower())[:40].strip("-") or "job"
