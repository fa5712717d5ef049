"""Where the processes of a stuck attempt stand, written to `stacks.txt` in its folder before they are ended.

First what costs them nothing: each thread's state, the place in the kernel that it waits in, and py-spy's dump where
that is installed. Then, where the attempt is lost anyway, SIGABRT to those that catch it: a Python with
PYTHONFAULTHANDLER prints the stack of every thread before it ends (it leaves no core: the limit is 0).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from gpuctl.node import deadline, processes, program
from gpuctl.node.clock import boottime
from gpuctl.node.processes import Process
from gpuctl.node.reaper import OnKill, Pause

FILE = "stacks.txt"
ABORTS: Mapping[str, bool] = {"stalled": True, "nccl_timeout": True, "thread_died": False, "driver_hung": False}
"""By class of the incident: whether SIGABRT may be sent. A process that lost a thread may yet write a checkpoint when
it is asked to stop; one that is stuck in the driver would not hear it."""

SPY_S, ALL_SPIES_S = 10.0, 30.0
PRINT_S, ALL_PRINTS_S = 2.0, 10.0  # that it may take to die of SIGABRT: one, all of them
POLL_S = 0.005
PROCESSES = 64
PRINTED_BYTES = 1 << 20

WHY = "so that it prints its threads' stacks"


class Stacks(NamedTuple):
    of: int  # processes
    dumped: int  # of these, by py-spy
    aborted: int  # of these, those that were sent SIGABRT


def keep(folder: str, ours: Sequence[Process], *, abort: bool, pause: Pause, on_kill: OnKill) -> Stacks:
    """Writes down where they stand; the file grows as it is learned, so that what is known stays known."""
    path = os.path.join(folder, FILE)
    shown = list(ours[:PROCESSES])
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
        for process in shown:
            file.write(f"{_title(process)}\n{_threads(process)}\n")
        file.flush()
        spied: Set[int] = set()
        end_at = boottime() + ALL_SPIES_S
        for process in shown:
            dump = _spy(process, min(SPY_S, end_at - boottime()), pause)
            if dump:
                spied.add(process.id.pid)
                file.write(f"{_title(process)}, by py-spy\n{dump}\n")
                file.flush()
        unspied = [process for process in shown if process.id.pid not in spied]
        silent = [process for process in unspied if processes.catches(process.id.pid, signal.SIGABRT)]
        if abort and silent:
            for told in _aborted(silent, pause, on_kill):
                file.write(told)
                file.flush()
    return Stacks(len(ours), len(spied), len(silent) if abort else 0)


def _title(process: Process) -> str:
    words = " ".join(process.argv) or process.comm
    return f"== pid {process.id.pid} (parent {process.ppid}): {words[:200]}"


def _threads(process: Process) -> str:
    """State and place of each thread, alike ones together; the whole kernel stack of those that no signal reaches."""
    folder = f"/proc/{process.id.pid}/task"
    places: Dict[str, int] = Counter()
    stuck: List[str] = []
    try:
        threads = sorted(os.listdir(folder), key=int)
    except OSError:
        return "   it is gone\n"
    for thread in threads:
        stat = _text(f"{folder}/{thread}/stat")
        state = stat.rpartition(")")[2].split()[:1] or ["?"]
        places[f"{state[0]} in {_text(f'{folder}/{thread}/wchan') or '?'}"] += 1
        if state[0] == "D":
            stack = _text(f"{folder}/{thread}/stack").replace("\n", "\n      ")
            stuck.append(f"   thread {thread} is in the kernel:\n      {stack or 'its stack is closed to us'}\n")
    ranked = sorted(places.items(), key=lambda item: -item[1])
    lines = [f"   {count} thread{'s' if count > 1 else ''}: {place}\n" for place, count in ranked]
    return "".join(lines + stuck)


def _spy(process: Process, within_s: float, pause: Pause) -> Optional[str]:
    """py-spy's dump of a Python process, by the py-spy of its own environment; None where there is none to be had, or
    where that is a program of another user's, which must not run as us."""
    environment = processes.environ(process.id.pid) or {}
    folders = [os.path.join(environment["VIRTUAL_ENV"], "bin")] if environment.get("VIRTUAL_ENV") else []
    folders += [os.path.dirname(word) for word in process.argv[:1] if os.path.isabs(word)]
    path = os.pathsep.join([*folders, environment.get("PATH", ""), program.DEFAULT_PATH])
    spy = shutil.which("py-spy", path=path)
    if spy is None or within_s <= 0 or os.stat(os.path.realpath(spy)).st_uid not in (0, os.geteuid()):
        return None
    with tempfile.TemporaryFile() as out:  # a pipe would fill up: nobody reads it before the end
        child = subprocess.Popen(
            [spy, "dump", "--pid", str(process.id.pid)], env=program.own_environment(),
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        end_at = boottime() + within_s
        while child.poll() is None and boottime() < end_at:
            pause(POLL_S)
        if child.poll() is None:
            deadline.kill(child)
            return None
        out.seek(0)
        dump = out.read(PRINTED_BYTES).decode("utf-8", "replace")
    return dump if child.returncode == 0 and dump.strip() else None


def _aborted(silent: Sequence[Process], pause: Pause, on_kill: OnKill) -> Iterator[str]:
    """What each prints on SIGABRT, one after the other, children first: several at once would write into each other's
    lines. The rest is stopped meanwhile, since who sees another one die may end before it has spoken."""
    for process in silent:
        processes.signal(process.id, signal.SIGSTOP)
    end_all = boottime() + ALL_PRINTS_S
    for process in sorted(silent, key=lambda each: each.id.start, reverse=True):
        path = _stderr(process)
        before = _size(path) if path is not None else 0
        if processes.signal(process.id, signal.SIGABRT):
            on_kill(process, "ABRT", WHY)
        processes.signal(process.id, signal.SIGCONT)
        end = min(end_all, boottime() + PRINT_S)
        while processes.alive(process.id) and boottime() < end:
            pause(POLL_S)
        if path is not None:
            yield f"{_title(process)}, printed to {path} after SIGABRT\n{_from(path, before)}\n"


def _stderr(process: Process) -> Optional[str]:
    """The regular file that its stderr goes to."""
    try:
        path = os.readlink(f"/proc/{process.id.pid}/fd/2")
    except OSError:
        return None
    return path if os.path.isfile(path) else None


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _from(path: str, offset: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(PRINTED_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"(it can't be read: {error})"


def _text(path: str) -> str:
    """A file in /proc; empty where it is closed to us or gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
