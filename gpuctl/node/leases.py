"""Who has which GPU: records in a machine-wide folder, so that two accounts exclude each other too.

One file a run, written and removed by its owner, changed only under a short flock on the folder itself. A lease ends
when its run ends or when this life of the machine does; never because a process died: a run without its supervisor
still has its GPUs. A ticket is a place in the queue for GPUs that are taken.

The folder is world-writable and sticky, so it may hold anything that anyone put there: nothing in it is followed
(links), created over (fs.protected_regular forbids it) or believed about its owner (the file system says who that is),
and what is not a record in every field is none. A record also says where its run's journal is. That is a path out of
another account's file: it is looked at before the flock is taken, counts only as a plain file of the record's own
owner, and no more than its end is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar

from gpuctl.node.clock import boottime
from gpuctl.node.folders import RUN_ID, StateFolder
from gpuctl.node.journal import tail
from gpuctl.node.lock_dir import FALLBACK_IN, shared_folder
from gpuctl.node.machine import Machine, identity, process_start
from gpuctl.node.refusal import UNFIT, Refusal
from gpuctl.wire.life import fold
from gpuctl.wire.nodespec import NodeSpec
from gpuctl.wire.word import Word

LOCK_DEADLINE_S = 10.0
UNBORN_S = 60.0
"""A lease is taken before its run's folder is renamed into place; a caller that dies between leaves one without."""
PLAINLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
RECORD_BYTES = 64 * 1024
MOST_PIDS = 1 << 22  # the kernel's own limit


@dataclass(frozen=True)
class Record(Word):
    """What leases and tickets share. `state_dir` is where the run's journal is. The last fields are not what the file
    says, but what the file system says of it."""

    run: str
    gpus: List[str]  # UUIDs; of a ticket those that would do
    machine: Dict[str, Any]
    state_dir: str
    mono_s: float  # when it was written
    share: bool = False
    user: str = ""
    path: str = ""
    uid: int = -1
    version: str = ""  # of the file: a record that is written anew is another one

    def whole(self) -> bool:
        """Whether every field is what it should be: the file may be anyone's."""
        return (
            isinstance(self.run, str)
            and RUN_ID.fullmatch(self.run) is not None
            and _texts(self.gpus)
            and isinstance(self.state_dir, str)
            and os.path.isabs(self.state_dir)
            and _number(self.mono_s)
            and isinstance(self.share, bool)
            and _a_machine(self.machine)
        )


@dataclass(frozen=True)
class Lease(Record):
    """A run's hold on its GPUs."""


@dataclass(frozen=True)
class Ticket(Record):
    """A run's place in the queue, good as long as the process that waits lives: a dead one lets others pass."""

    count: int = 1  # how many of `gpus` it wants
    since: str = ""  # when the run was created: a queue rebuilt after a restart keeps its order
    pid: int = 0
    start: Optional[int] = None

    def whole(self) -> bool:
        known = self.start is None or _number(self.start)
        placed = _number(self.count) and isinstance(self.since, str)
        return super().whole() and placed and known and type(self.pid) is int and 0 < self.pid <= MOST_PIDS

    @property
    def order(self) -> Tuple[str, str]:
        return (self.since, self.run)


class Taken(Exception):
    """Other runs hold some of the GPUs that were asked for."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = list(leases)
        super().__init__("; ".join(f"{lease.run} ({lease.user}) holds {len(lease.gpus)} GPU(s)" for lease in leases))

    @property
    def hint(self) -> str:
        records = ", ".join(lease.path for lease in self.leases)
        return f"wait for it with --queue; should that run be no more, its record is {records}"


R = TypeVar("R", bound=Record)


class Leases:
    def __init__(self, node: NodeSpec, machine: Optional[Machine] = None, *, fallback_in: str = FALLBACK_IN) -> None:
        self.machine = machine if machine is not None else identity()
        self._state_dir = StateFolder(node).path
        self.folder = shared_folder(node, fallback_in=fallback_in)
        self._ended: Optional[Set[Tuple[str, str]]] = None  # while it is locked: the leases found to be over before

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No one else changes anything meanwhile. Hold it for milliseconds: look, take, let go. Not reentrant."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            ended = {(lease.path, lease.version) for lease in self._records(Lease) if self._over(lease)}
            _flock(fd, self.folder)
            self._ended = ended
            yield
        finally:
            self._ended = None
            os.close(fd)

    def held(self) -> Dict[str, List[Lease]]:
        """Who holds what, by GPU UUID. More than one lease on a GPU means that they share it."""
        by_gpu: Dict[str, List[Lease]] = {}
        for lease in self.leases():
            for uuid in lease.gpus:
                by_gpu.setdefault(uuid, []).append(lease)
        return by_gpu

    def leases(self) -> List[Lease]:
        """Within `locked()`, one that was written since counts as held."""
        records = self._records(Lease)
        if self._ended is not None:
            return [lease for lease in records if (lease.path, lease.version) not in self._ended]
        return [lease for lease in records if not self._over(lease)]

    def take(self, uuids: Iterable[str], run: str, share: bool = False) -> None:
        """Give these GPUs to the run, instead of those that it had. To be called in `locked()`. Raises `Taken`."""
        wanted = list(uuids)
        held = self.held()
        others = [lease for uuid in wanted for lease in held.get(uuid, []) if lease.run != run]
        in_the_way = [lease for lease in others if not (share and lease.share)]
        if in_the_way:
            raise Taken(list({lease.path: lease for lease in in_the_way}.values()))
        self._write(Lease(run, wanted, self.machine.to_json(), self._state_dir, boottime(), share))

    def release(self, run: str) -> None:
        """Also where it holds nothing."""
        _remove(self._path(Lease, run))

    def renew(self, run: str) -> None:
        """Keeps its lease and its ticket young: what cleans /tmp (the folder may be there) removes old files. To be
        called now and then as long as the run lives."""
        for kind in (Lease, Ticket):
            with contextlib.suppress(OSError):  # it has none of this kind
                os.utime(self._path(kind, run), follow_symlinks=False)

    def enqueue(self, run: str, gpus: Sequence[str], count: int, since: str) -> None:
        """A place in the queue, by `since` (the run's creation), while this process lives. Again: the same place."""
        me = os.getpid()
        self._write(
            Ticket(
                run,
                list(gpus),
                self.machine.to_json(),
                self._state_dir,
                boottime(),
                count=count,
                since=since,
                pid=me,
                start=process_start(me),
            )
        )

    def ahead(self, run: str, gpus: Optional[Sequence[str]] = None) -> List[Ticket]:
        """The tickets that come before this run's and could want one of the same GPUs (of its own ticket's, unless
        `gpus` says others). For a run without a ticket: all that wait for those."""
        tickets = sorted(self.tickets(), key=lambda ticket: ticket.order)
        own = next((ticket for ticket in tickets if ticket.run == run), None)
        wanted = set(gpus if gpus is not None else own.gpus if own else [])
        before = tickets if own is None else tickets[: tickets.index(own)]
        return [ticket for ticket in before if wanted.intersection(ticket.gpus)]

    def place(self, run: str) -> Optional[int]:
        """1 is the next; None for a run that does not wait."""
        return len(self.ahead(run)) + 1 if any(ticket.run == run for ticket in self.tickets()) else None

    def leave(self, run: str) -> None:
        """Give up the place in the queue, also where there is none."""
        _remove(self._path(Ticket, run))

    def tickets(self) -> List[Ticket]:
        return [ticket for ticket in self._records(Ticket) if _alive(ticket.pid, ticket.start)]

    def _path(self, kind: Type[Record], run: str) -> str:
        # The owner is part of the name, since two accounts could think of the same run id.
        return os.path.join(self.folder, f"{run}.{os.getuid()}.{kind.__name__.lower()}")

    def _records(self, kind: Type[R]) -> List[R]:
        """Those of this life of the machine, whoever wrote them."""
        ending = f".{kind.__name__.lower()}"
        records = []
        for name in sorted(os.listdir(self.folder)):
            record = _read(kind, os.path.join(self.folder, name)) if name.endswith(ending) else None
            if record is not None and self.machine.same_life(Machine.from_json(record.machine)):
                records.append(record)
        return records

    def _write(self, record: Record) -> None:
        """Raises Refusal where that can't be: in a sticky folder another account may have taken the name."""
        path = self._path(type(record), record.run)
        aside = f"{path}.{os.urandom(8).hex()}.new"
        try:
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                with open(fd, "w", encoding="utf-8") as file:
                    os.fchmod(fd, 0o644)  # whatever the umask says: other accounts must see it
                    json.dump(record.to_json(), file)
                os.rename(aside, path)
            except BaseException:
                _remove(aside)
                raise
        except OSError as error:
            cure = f"`ls -ld {path}` shows what is in the way; remove it"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                cure = f"make room there: `df -h {self.folder}` and `df -i {self.folder}` say what is used up"
            raise Refusal(UNFIT, f"can't write {path}: {error.strerror}", cure) from error

    def _over(self, lease: Lease) -> bool:
        """Has its run ended, as far as we may look? What is closed to us, or not its owner's own, says nothing."""
        folder = os.path.join(lease.state_dir, "runs", lease.run)
        try:
            if not os.path.lexists(folder):
                os.listdir(os.path.dirname(folder))  # a state folder that is away just now (a mount) says nothing
                return boottime() - lease.mono_s > UNBORN_S
            fd = os.open(os.path.join(folder, "journal.jsonl"), PLAINLY)
            try:
                found = os.fstat(fd)
                own = stat.S_ISREG(found.st_mode) and found.st_uid == lease.uid
                return own and fold(tail(fd)).over
            finally:
                os.close(fd)
        except (OSError, ValueError, TypeError, KeyError):
            return False


def _flock(fd: int, path: str) -> None:
    """With a deadline, since any account could hold it for ever."""
    deadline = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Refusal(
                    UNFIT,
                    f"a process has held the lock of {path} for {LOCK_DEADLINE_S:.0f} s",
                    f"`fuser -v {path}` names it",
                ) from None
            time.sleep(0.002)


def _read(kind: Type[R], path: str) -> Optional[R]:
    """None where there is no record of ours: gone meanwhile, a link, not our words."""
    try:
        fd = os.open(path, PLAINLY)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        data = json.loads(os.pread(fd, RECORD_BYTES, 0))
        seen = {
            "user": _user(found.st_uid),
            "path": path,
            "uid": found.st_uid,
            "version": f"{found.st_ino}.{found.st_mtime_ns}",
        }
        record = kind.from_json({**data, **seen})
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    finally:
        os.close(fd)
    return record if record.whole() else None


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _a_machine(value: Mapping[str, Any]) -> bool:
    start = value.get("init_start") if isinstance(value, dict) else ""
    return (start is None or _number(start)) and _texts([value.get("host"), value.get("boot_id")])


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _alive(pid: int, start: Optional[int]) -> bool:
    seen = process_start(pid)
    if seen is not None and start is not None:
        return seen == start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another account's, hidden from us: it exists
    return True


def _remove(path: str) -> None:
    """Also where there is none of ours: a name that another account took, say. A record ends without it, too."""
    with contextlib.suppress(OSError):
        os.unlink(path)
