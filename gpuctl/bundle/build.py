"""One reproducible zipapp of all that runs on a node, named by its SHA-256.

The same files give the same bytes (names sorted, times fixed), so that a node that has a bundle never gets it again.
Building takes 50 ms, so the bytes are kept, under a name made of the files' sizes and times, and of the bytes' digest:
what a full disk or a power cut left of them is not taken for a bundle.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from gpuctl.errors import GpuctlError
from gpuctl.places import state_folder

SHIPPED = ("wire", "watchdog", "node", "simulation")
KEPT = 4  # bundles of as many versions of the source
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold


@dataclass(frozen=True)
class Bundle:
    data: bytes
    digest: str  # SHA-256, in hex: its name on the node


@functools.cache
def build() -> Bundle:
    """Of the installed package, once a process."""
    members = dict(sorted(shipped_files()))
    folder, source = state_folder() / "bundles", _fingerprint(members)
    bundle = _kept(folder, source)
    if bundle is None:
        data = zipped({name: path.read_bytes() for name, path in members.items()})
        bundle = Bundle(data, hashlib.sha256(data).hexdigest())
        _keep(folder / f"{source}-{bundle.digest}.pyz", data)
    return bundle


def zipped(members: dict[str, bytes]) -> bytes:
    """A zip file's bytes, which depend on nothing but the members."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted(members.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, wherever it was built
            info.external_attr = 0o100600 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=9)
    return buffer.getvalue()


def shipped_files() -> Iterator[tuple[str, Path]]:
    """Each member's name in the zip, and the file that it is a copy of."""
    package = Path(__file__).parent.parent
    yield "__main__.py", package / "node" / "__main__.py"  # at the top too: it unpacks before it imports the package
    yield "pynvml.py", _pynvml()
    yield "gpuctl/__init__.py", package / "__init__.py"
    for part in SHIPPED:
        for path in (package / part).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"gpuctl/{path.relative_to(package).as_posix()}", path


def _pynvml() -> Path:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise GpuctlError(
            "pynvml is not installed here, so nothing can be sent to a node", "Run: pip install nvidia-ml-py"
        )
    return Path(found.origin)


def _fingerprint(members: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in members.items():
        facts = path.stat()
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:32]


def _kept(folder: Path, source: str) -> Bundle | None:
    for path in folder.glob(f"{source}-*.pyz"):
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if path.stem == f"{source}-{digest}":
                return Bundle(data, digest)
    return None


def _keep(kept: Path, data: bytes) -> None:
    """Aside, then renamed. A cache that can't be written costs time, so it is no error."""
    with contextlib.suppress(OSError):
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=kept.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)
            Path(aside).rename(kept)
        except OSError:
            Path(aside).unlink()  # on a full disk, half of it would stay at each try
            raise
        by_age = sorted(kept.parent.glob("*.pyz"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in by_age[KEPT:]:
            old.unlink()
