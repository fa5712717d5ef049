"""The verbs `pack` and `unpack`: files and folders as a tar stream, out of this node and into it, for `gpuctl cp`.

Both ends hash what passes; a copy takes its place only once the hashes agree, so a cut connection leaves no half file.

    pack:    stdout has `{"chunk": N}` lines, each with N bytes, then `{"sha256", "bytes", "files", "file_bytes",
             "skipped"}`: `bytes` of the stream, `file_bytes` in the files; folders are none
    unpack:  stdin has the same after the request, empty lines (signs of life) between; the answer is that last line
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import select
import shutil
import stat
import tarfile
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, cast

from gpuctl.node.folders import StateFolder, expand
from gpuctl.node.journal import outline
from gpuctl.node.link import OVERDUE, Link, LinkClosed
from gpuctl.node.logs import workdir_of
from gpuctl.node.refusal import BAD_USAGE, FAILED, NO_SUCH_RUN, Refusal
from gpuctl.wire.life import fold
from gpuctl.wire.nodespec import NodeSpec

BLOCK = 1 << 20
SILENCE_S = 60.0


def pack(node: NodeSpec, request: Mapping[str, Any], link: Link) -> None:
    """`path` (of `run`'s workdir, where that is given) with all below it, under its own last name."""
    path = _located(node, request)
    if not os.path.lexists(path):
        raise Refusal(NO_SUCH_RUN, f"{path} does not exist on {node.name}", "")
    if not _portable(os.lstat(path).st_mode):
        raise Refusal(BAD_USAGE, f"{path} is neither a file nor a folder", "a pipe, socket or device can't be copied")
    sender = _Sender(link)
    files, file_bytes, skipped = 0, 0, []  # type: int, int, List[str]
    with tarfile.open(fileobj=sender, mode="w|", bufsize=BLOCK, format=tarfile.PAX_FORMAT) as tar:
        for each in _below(path):
            name = os.path.join(os.path.basename(path), os.path.relpath(each, path))
            mode = os.lstat(each).st_mode
            if _portable(mode):
                file_bytes += _add(tar, each, os.path.normpath(name))
                files += not stat.S_ISDIR(mode)
            else:
                skipped.append(each)
    link.send({**sender.total(), "files": files, "file_bytes": file_bytes, "skipped": skipped})


def unpack(node: NodeSpec, request: Mapping[str, Any], link: Link, stream: Optional[BinaryIO] = None) -> None:
    """Into `path` where that is a folder, or ends with a slash; else as `path`."""
    asked = str(request["path"])
    path = _located(node, request)
    into = os.path.isdir(path)
    if asked.endswith("/") and not into:
        raise Refusal(
            BAD_USAGE,
            f"{path} is no folder on {node.name}",
            "make it first (one file alone may get a new name: its target has no slash at the end)",
        )
    parent = path if into else os.path.dirname(path)
    if not os.path.isdir(parent):
        raise Refusal(BAD_USAGE, f"{parent} does not exist on {node.name}", "make it first")
    aside = os.path.join(parent, f".gpuctl-cp-{os.getpid()}")
    os.mkdir(aside, 0o700)
    try:
        receiver = _Receiver(stream if stream is not None else _patient(request.get("keepalive")))
        with tarfile.open(fileobj=receiver, mode="r|", bufsize=BLOCK) as tar:
            files = sum(_extract(tar, member, aside) for member in tar)
        total = receiver.finish()
        for name in os.listdir(aside):
            _put_in_place(os.path.join(aside, name), os.path.join(path, name) if into else path)
    except tarfile.TarError as error:
        raise Refusal(FAILED, f"what arrived for {path} is no whole copy: {error}", "copy it again") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    link.send({**total, "files": files, "skipped": []})


class _Stdin(io.RawIOBase):
    """Standard input, with an end to its silence: under `pct` a cut connection may never close it."""

    def __init__(self, silence_s: float) -> None:
        self._silence_ms = int(silence_s * 1000)
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._poll.poll(self._silence_ms):
            raise LinkClosed
        data = os.read(0, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _patient(keepalive_s: Optional[float]) -> BinaryIO:
    stdin = _Stdin(OVERDUE * keepalive_s if keepalive_s is not None else SILENCE_S)
    return cast(BinaryIO, io.BufferedReader(stdin, BLOCK))


class _Sender(io.RawIOBase):
    """What tarfile writes to: chunks for the controller."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._hash = hashlib.sha256()
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._bytes += len(data)
        self._link.send_chunk({}, bytes(data))
        return len(data)

    def total(self) -> Dict[str, Any]:
        return {"sha256": self._hash.hexdigest(), "bytes": self._bytes}


class _Receiver(io.RawIOBase):
    """What tarfile reads from: the controller's chunks put together."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._left = 0  # of the current chunk
        self._last: Optional[Dict[str, Any]] = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, unless the end comes before: tarfile takes less for a broken archive."""
        data = b""
        while len(data) < size and (self._left or self._next()):
            piece = self._stream.read(min(size - len(data), self._left))
            if not piece:
                raise self._cut()
            self._left -= len(piece)
            data += piece
        self._hash.update(data)
        self._bytes += len(data)
        return data

    def finish(self) -> Dict[str, Any]:
        """What the sender says of the whole, which must be what we have seen. Raises Refusal."""
        while self.read(BLOCK):  # padding after the archive's end
            pass
        seen = {"sha256": self._hash.hexdigest(), "bytes": self._bytes}
        if self._last is None or self._last.get("sha256") != seen["sha256"]:
            raise Refusal(FAILED, "what arrived is not what was sent: the hashes differ", "copy it again")
        return seen

    def _next(self) -> bool:
        """On to the next chunk; False after the last."""
        while self._last is None:
            line = self._stream.readline(4096)
            if not line:
                raise self._cut()
            if not line.strip():
                continue
            frame = json.loads(line)
            if "chunk" not in frame:
                self._last = frame
            else:
                self._left = int(frame["chunk"])
                if self._left:
                    return True
        return False

    def _cut(self) -> Refusal:
        return Refusal(FAILED, "the connection was cut in the middle of a copy; nothing was changed", "copy it again")


def _located(node: NodeSpec, request: Mapping[str, Any]) -> str:
    """The path that is meant: below home, or below the workdir of `run`'s last attempt."""
    run = request.get("run")
    if run is None:
        return expand(str(request["path"]))
    folder = StateFolder(node).existing(run)
    life = fold(outline(folder.journal))
    return expand(str(request["path"]), workdir_of(folder, life, life.attempt or 1))


def _below(path: str) -> List[str]:
    """The path itself, then what is in it, folders before their content."""
    found = [path]
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, folders, files in os.walk(path, onerror=_unreadable):
            folders.sort()
            found += [os.path.join(folder, name) for name in (*folders, *sorted(files))]
    return found


def _unreadable(error: OSError) -> None:
    raise Refusal(FAILED, f"can't read {error.filename}: {error.strerror}", "copy as a user who may")


def _portable(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _add(tar: tarfile.TarFile, path: str, name: str) -> int:
    """Answers how many bytes of content it has."""
    try:
        entry = tar.gettarinfo(path, name)
        if entry.islnk():  # a second name of a file that was sent already: a file of its own in the copy
            entry.type, entry.size = tarfile.REGTYPE, os.stat(path).st_size
        if not entry.isreg():
            tar.addfile(entry)
            return 0
        with open(path, "rb") as file:
            tar.addfile(entry, file)
        return entry.size
    except OSError as error:
        why = error.strerror or "it became shorter while it was read"
        raise Refusal(FAILED, f"can't copy {path}: {why}", "copy it once nobody writes to it") from None


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, aside: str) -> int:
    """One member, if it stays inside `aside`: an archive may name any path and lead through any link. Answers how many
    files it is: a folder is none."""
    path = os.path.normpath(os.path.join(aside, member.name))
    parent = os.path.dirname(path)
    inside = (
        path.startswith(aside + os.sep) and os.path.realpath(parent) == os.path.realpath(aside) + parent[len(aside) :]
    )
    if not inside or not (member.isreg() or member.isdir() or member.issym()):
        raise Refusal(FAILED, f"the copy holds {member.name!r}, which has no place here", "")
    os.makedirs(parent, exist_ok=True)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
        os.chmod(path, member.mode & 0o777 | 0o700)
        return 0
    if member.issym():
        os.symlink(member.linkname, path)
        return 1
    content = tar.extractfile(member)
    assert content is not None
    with open(path, "xb") as file:
        shutil.copyfileobj(content, file, BLOCK)
        file.flush()  # a later write would set the time anew
        os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(file.fileno(), (member.mtime, member.mtime))
        os.fsync(file.fileno())
    return 1


def _put_in_place(source: str, target: str) -> None:
    """By renames. A folder that is there already is filled; a file is replaced."""
    if os.path.isdir(source) and not os.path.islink(source) and os.path.isdir(target):
        for name in os.listdir(source):
            _put_in_place(os.path.join(source, name), os.path.join(target, name))
        return
    try:
        os.replace(source, target)
    except OSError as error:
        raise Refusal(
            FAILED, f"can't write {target}: {error.strerror}", "a file and a folder can't change places"
        ) from error
