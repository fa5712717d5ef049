"""Where things lie on the node: the state folder and one run's folder in it. No other module spells these names.

<state_dir>/                 0700
  agent/                     bundles, by digest
  runs/<run>/                built aside, renamed into place: it exists whole or not at all
    spec.json  journal.jsonl
    lock                     held by the supervisor for its life
    reserve                  room for the journal's last words
    requests/<id>.json       renamed into place by callers
    attempts/<n>/            log, exit.json, samples.jsonl (for a replay); the job's GPUCTL_DIR
  ledger.jsonl  history.jsonl
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shutil
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpuctl.node.refusal import BAD_USAGE, NO_SUCH_RUN, UNFIT, Refusal
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.runspec import RunSpec

RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


def home() -> str:
    """The passwd entry's home, not $HOME: what enters a container brings the host's variables along."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise Refusal(
            UNFIT,
            f"user {os.getuid()} has no passwd entry here, so `~` has no meaning",
            "name a whole path as state_dir and workdir",
        ) from None


def expand(path: str, base: Optional[str] = None) -> str:
    """`path` with a leading `~` as the user's home; a relative one is below `base`, or below home."""
    if path == "~" or path.startswith("~/"):
        return os.path.normpath(os.path.join(home(), path[2:]))
    if os.path.isabs(path):
        return os.path.normpath(path)
    return os.path.normpath(os.path.join(base if base is not None else home(), path))


class RunFolder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.run = os.path.basename(path)
        self.spec_file = os.path.join(path, "spec.json")
        self.journal = os.path.join(path, "journal.jsonl")
        self.lock = os.path.join(path, "lock")
        self.reserve = os.path.join(path, "reserve")
        self.requests = os.path.join(path, "requests")
        self.attempts = os.path.join(path, "attempts")

    def spec(self) -> RunSpec:
        with open(self.spec_file, encoding="utf-8") as file:
            return RunSpec.from_json(json.load(file))

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(os.path.join(self.attempts, str(number)))

    def attempt_numbers(self) -> List[int]:
        try:
            return sorted(int(name) for name in os.listdir(self.attempts) if name.isdigit())
        except FileNotFoundError:
            return []

    def supervised(self) -> bool:
        """Does a supervisor hold this run now?"""
        return locked(self.lock)


class AttemptFolder:
    def __init__(self, path: str) -> None:
        self.path = path
        self.number = int(os.path.basename(path))
        self.log = os.path.join(path, "log")
        self.exit_file = os.path.join(path, "exit.json")

    def create(self) -> None:
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def exit(self) -> Optional[Dict[str, Any]]:
        """What the keeper wrote of its end; None while there is nothing."""
        try:
            with open(self.exit_file, encoding="utf-8") as file:
                answer: Dict[str, Any] = json.load(file)
                return answer
        except FileNotFoundError:
            return None


class StateFolder:
    def __init__(self, node: NodeSpec) -> None:
        self.path = expand(node.state_dir)
        self.agent = os.path.join(self.path, "agent")
        self.runs = os.path.join(self.path, "runs")
        self.ledger = os.path.join(self.path, "ledger.jsonl")
        self.history = os.path.join(self.path, "history.jsonl")

    def ensure(self) -> None:
        """Make what is missing, for this user alone."""
        for path in (self.path, self.agent, self.runs):
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
            except OSError as error:
                raise Refusal(
                    UNFIT, f"can't make {path}: {error.strerror}", "make room or name another state_dir"
                ) from None
        if os.stat(self.path).st_mode & 0o077:
            os.chmod(self.path, 0o700)

    def run(self, run: str) -> RunFolder:
        """The folder that this run has, or would have."""
        if not RUN_ID.fullmatch(run):
            raise Refusal(BAD_USAGE, f"{run!r} is no run's id", "ids look like eagle3-extract-k3x9q2")
        return RunFolder(os.path.join(self.runs, run))

    def existing(self, run: str) -> RunFolder:
        folder = self.run(run)
        if not os.path.isdir(folder.path):
            raise Refusal(NO_SUCH_RUN, f"there is no run {run} in {self.runs}", "`gpuctl ps -a` lists the node's runs")
        return folder

    def all_runs(self) -> List[RunFolder]:
        try:
            names = os.listdir(self.runs)
        except FileNotFoundError:
            return []
        return [RunFolder(os.path.join(self.runs, name)) for name in sorted(names) if RUN_ID.fullmatch(name)]

    def create_run(self, spec: RunSpec, fill: Callable[[RunFolder], None]) -> Tuple[RunFolder, bool]:
        """A run's folder, built aside and renamed into place; `fill` writes what else belongs in it from the start
        (its journal's first record). Answers the folder and whether it is new: a repeated request finds it made.
        """
        folder = self.run(spec.run)
        if os.path.isdir(folder.path):
            return folder, False
        self.ensure()
        aside = RunFolder(os.path.join(self.runs, f".{spec.run}.{os.urandom(4).hex()}"))
        try:
            for path in (aside.path, aside.requests, aside.attempts):
                os.mkdir(path, 0o700)
            write_json(aside.spec_file, spec.to_json())
            with open(aside.lock, "x", encoding="ascii"):
                os.chmod(aside.lock, 0o600)
            fill(aside)
            os.rename(aside.path, folder.path)
        except OSError as error:
            shutil.rmtree(aside.path, ignore_errors=True)
            if os.path.isdir(folder.path):  # another caller with the same request was faster
                return folder, False
            raise Refusal(UNFIT, f"can't make {folder.path}: {error.strerror}", "make room there") from error
        except BaseException:
            shutil.rmtree(aside.path, ignore_errors=True)
            raise
        sync_folder(self.runs)
        return folder, True

    def unlist(self, folder: RunFolder) -> str:
        """The run is no more: its folder gets a name that is none, at once, and may be deleted in peace. Answers where
        it lies then. The caller holds its lock."""
        aside = os.path.join(self.runs, f".{folder.run}.{os.urandom(4).hex()}.removed")
        os.rename(folder.path, aside)
        sync_folder(self.runs)
        return aside


def write_json(path: str, value: Any, *, mode: int = 0o600) -> None:
    """A JSON file that is there whole or not at all, and still there after a power cut."""
    aside = f"{path}.{os.getpid()}.new"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.write("\n")
            file.flush()
            os.fsync(fd)
        os.rename(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make renames in a folder outlast a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def try_lock(path: str, *, patience_s: float = 0.1) -> Optional[int]:
    """The descriptor that holds the lock, until it is closed; None where another process has it.

    `locked` looks by holding it for a moment, so one look does not count as taken: hence the patience.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.005)


def locked(path: str) -> bool:
    """Does a process hold this lock? Looks by a shared lock, for a moment: lookers don't disturb each other."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
