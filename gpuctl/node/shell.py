"""One attempt's shell script and environment: what CONTRACT says a job finds.

`setup` and `command` run in one login shell in `workdir`. Where the command is one simple command, the shell gives way
to it by `exec`: then the attempt's first process is the job itself, a stop signal reaches it, and its wait status is
its own (a shell turns death by SIGKILL into exit code 137, which a program can return too).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from typing import Dict, List, Mapping, Optional

from gpuctl.node import deadline, program
from gpuctl.node.folders import expand
from gpuctl.wire import braces
from gpuctl.wire.runspec import RunSpec, Scalar

SHELL_DEADLINE_S = 20.0
GIT_DEADLINE_S = 3.0
SETUP_DONE = "setup-done"
"""In the attempt's folder: `setup` was through."""
RESUME = "resume"
"""`{resume}` in a command: where `resume.append` stands once there is a checkpoint, instead of at the end."""
_RESUME_MARK = "gpuctl-resume-stands-here"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./+-]+\Z")


def login_shell() -> List[str]:
    """`bash -l`, or `sh -l` where there is no bash."""
    found = shutil.which("bash", path=program.DEFAULT_PATH)
    return [found or "/bin/sh", "-l"]


def values(spec: RunSpec, params: Mapping[str, Scalar], attempt: int, gpus: int, port: int) -> Dict[str, Scalar]:
    """What braces may name: the parameters, as they were written where that is known, and gpuctl's own."""
    shown = {name: _as_written(value, spec.written.get(name)) for name, value in params.items()}
    return {**shown, "run": spec.run, "job": spec.job, "attempt": attempt, "gpus": gpus, "port": port}


def _as_written(value: Scalar, text: Optional[str]) -> Scalar:
    """The text, as long as it stands for this value: the ladder and people give others."""
    return text if text is not None and isinstance(value, float) and float(text) == value else value


def free_port() -> int:
    """A TCP port that is free on this machine now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def workdir(spec: RunSpec, known: Mapping[str, Scalar]) -> str:
    return expand(braces.render(spec.workdir, known, quote=False))


def environment(
    spec: RunSpec, known: Mapping[str, Scalar], *, attempt_dir: str, indices: List[int], added: Mapping[str, str]
) -> Dict[str, str]:
    """The variables that gpuctl and the job file set, no secrets. `added` are the policy's (an allocator setting)."""
    ours = {
        "GPUCTL_RUN": spec.run,
        "GPUCTL_ATTEMPT": str(known["attempt"]),
        "GPUCTL_DIR": attempt_dir,
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in indices),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "SPT_NOENV": "1",
    }
    of_job = {name: braces.render(value, known, quote=False) for name, value in spec.env.items()}
    return {**ours, **added, **of_job}


def script(spec: RunSpec, known: Mapping[str, Scalar], exported: Mapping[str, str], *, resume: Optional[str]) -> str:
    """The shell text. Exports stand in it too, after the profile, which could set CUDA_VISIBLE_DEVICES otherwise."""
    command = _command(spec, known, resume or "")
    lines = [
        "set -e",
        "(set -o pipefail) 2>/dev/null && set -o pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in exported.items()),
        f"cd -- {shlex.quote(workdir(spec, known))}",
    ]
    if spec.setup.strip():
        lines += [spec.setup.rstrip("\n"), f': > "$GPUCTL_DIR/{SETUP_DONE}"']
    word = first_word(command)
    if word is not None and is_simple(command):
        # A file gives way to exec; a function or a builtin of the same name can't.
        lines.append(f'gpuctl_exec=; case "$(command -v {word} || :)" in */*) gpuctl_exec=exec;; esac')
        command = _with_exec(command, word)
    lines.append(command)
    return "\n".join(lines) + "\n"


def _command(spec: RunSpec, known: Mapping[str, Scalar], resume: str) -> str:
    """The command with its values. `resume` is shell text already."""
    marked = braces.render(spec.command, {RESUME: _RESUME_MARK, **known}, quote=True)
    if RESUME in braces.names(spec.command):
        return marked.replace(_RESUME_MARK, resume)
    return f"{marked.rstrip()} {resume}" if resume else marked


def is_simple(command: str) -> bool:
    """Whether it is one command: no list, pipeline, subshell, loop or second line."""
    text = command.strip().replace("\\\n", " ")
    if "\n" in text:
        return False
    lexer = shlex.shlex(text, posix=False, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        return False
    operators = [piece for piece in tokens if piece and set(piece) <= set(";&|()")]
    joined = re.sub(r"[0-9]*[<>]&[0-9-]+|&>>?", "", text)  # 2>&1 and &> are redirections, not lists
    return not [sign for sign in operators if sign != "&"] and not _has_bare(joined, "&")


def _has_bare(text: str, sign: str) -> bool:
    """Whether `sign` stands outside quotes."""
    quote = ""
    for before, char in zip(" " + text, text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and before != "\\":
            quote = char
        elif char == sign and before != "\\":
            return True
    return False


def first_word(command: str) -> Optional[str]:
    """The command's own first word after assignments, where it is plain text; None where only the shell could tell."""
    try:
        words = shlex.split(command.strip().replace("\\\n", " "), comments=False)
    except ValueError:
        return None
    for word in words:
        if _ASSIGNMENT.match(word):
            continue
        return word if _PLAIN_WORD.match(word) and word in command else None
    return None


def _with_exec(command: str, word: str) -> str:
    """`command` with `$gpuctl_exec` before its first word; leading assignments stay in front, as `exec` allows."""
    rest = command.lstrip()
    at = 0
    while True:
        match = re.match(r"\s*[A-Za-z_][A-Za-z0-9_]*\+?=(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^\s'\"\\])*\s+", rest[at:])
        if match is None:
            break
        at += match.end()
    if not rest[at:].lstrip().startswith(word):
        return command
    return f"{rest[:at]}$gpuctl_exec {rest[at:].lstrip()}"


def missing_word(spec: RunSpec, known: Mapping[str, Scalar]) -> Optional[str]:
    """The command's first word, if the node's login shell does not find it. A `setup` may bring it, so then: None."""
    if spec.setup.strip():
        return None
    word = first_word(_command(spec, known, ""))
    if word is None or finds(word, workdir(spec, known)):
        return None
    return word


def finds(word: str, folder: str) -> bool:
    """Whether the login shell knows `word` in that folder (a file, a builtin, a keyword)."""
    try:
        done = deadline.run(
            [*login_shell(), "-c", 'command -v "$1" >/dev/null 2>&1', "sh", word],
            cwd=folder, env=program.login_environment(), within_s=SHELL_DEADLINE_S,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError):
        return True  # a profile that hangs or a folder that can't be entered says so better in the attempt itself
    return done.returncode == 0


def code_of(folder: str) -> Optional[Dict[str, object]]:
    """The git commit of `folder` and whether it has uncommitted changes; None where it is no checkout."""

    def git(*words: str) -> Optional[str]:
        try:
            done = deadline.run(
                ["git", "-C", folder, *words], env={**program.login_environment(), "GIT_OPTIONAL_LOCKS": "0"},
                stdout=subprocess.PIPE, within_s=GIT_DEADLINE_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None

    if not _is_checkout(folder):
        return None
    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _is_checkout(folder: str) -> bool:
    """Whether a `.git` stands in the folder or above it; spares starting git where there is none."""
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return True
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
