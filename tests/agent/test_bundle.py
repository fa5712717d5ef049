"""The zipapp: the same bytes from the same files, complete, small, and running where there is only Python."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuctl.bundle import build
from gpuctl.bundle.build import shipped_files, zipped
from tests.parts.pythons import pythons


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def fresh() -> bytes:
    """As another process would build it."""
    build.cache_clear()
    return build().data


def test_the_same_files_give_the_same_bytes() -> None:
    members = {name: path.read_bytes() for name, path in shipped_files()}
    backwards = dict(reversed(list(members.items())))
    assert zipped(members) == zipped(backwards)
    assert build().digest == hashlib.sha256(build().data).hexdigest()


def test_it_is_kept_and_read_again(own_home: Path) -> None:
    first = fresh()
    (kept,) = (own_home / "bundles").iterdir()
    assert kept.read_bytes() == first
    assert (own_home / "bundles").stat().st_mode & 0o777 == 0o700
    written = kept.stat()
    assert fresh() == first
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns), "not built again"


@pytest.mark.parametrize("left", ["nothing", "half", "zeroes"])
def test_what_a_power_cut_left_of_it_is_built_again(own_home: Path, left: str) -> None:
    first = fresh()
    (kept,) = (own_home / "bundles").iterdir()
    harm = {"nothing": b"", "half": first[: len(first) // 2], "zeroes": bytes(len(first))}
    kept.write_bytes(harm[left])
    assert fresh() == first
    assert kept.read_bytes() == first


def test_the_home_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUCTL_HOME", "~/of-gpuctl")
    fresh()
    assert list((tmp_path / "of-gpuctl" / "bundles").iterdir())


def test_few_are_kept(own_home: Path) -> None:
    (own_home / "bundles").mkdir(parents=True)
    for n in range(9):
        old = own_home / "bundles" / f"{n}.pyz"
        old.write_bytes(b"old")
        os.utime(old, (n, n))
    fresh()
    assert len(list((own_home / "bundles").iterdir())) == 4


def test_a_cache_that_can_not_be_written_is_no_error(own_home: Path) -> None:
    own_home.write_text("a file where the folder should be")
    assert fresh()


def test_a_full_disk_keeps_nothing_half_written(own_home: Path) -> None:
    fresh()
    (kept,) = (own_home / "bundles").iterdir()
    kept.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as a full disk does: the write fails in the middle
    try:
        assert fresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert list((own_home / "bundles").iterdir()) == []


def test_what_is_in_it() -> None:
    names = zipfile.ZipFile(io.BytesIO(build().data)).namelist()
    assert {
        "__main__.py",
        "pynvml.py",
        "gpuctl/__init__.py",
        "gpuctl/wire/runspec.py",
        "gpuctl/node/__main__.py",
    } <= set(names)
    floors = {name.split("/")[1] for name in names if name.startswith("gpuctl/")}
    assert floors == {"__init__.py", "wire", "watchdog", "node", "simulation"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert len(build().data) < 400_000


@pytest.mark.parametrize("python", pythons("3.8", "3.9", "3.10", "3.11", "3.12", "3.13") or [sys.executable])
def test_every_module_of_it_loads_without_site_packages(python: str, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.pyz"
    archive.write_bytes(build().data)
    program = """
import importlib, sys, zipfile
sys.path.insert(0, sys.argv[1])
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    if name.endswith(".py") and not name.endswith("__main__.py"):
        importlib.import_module(name[:-3].replace("/", ".").replace(".__init__", ""))
"""
    done = subprocess.run(
        [python, "-I", "-S", "-c", program, str(archive)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_checkout_elsewhere_gives_the_same_digest(tmp_path: Path) -> None:
    """Neither paths nor times of the files are in it."""
    fresh()
    package = Path(sys.modules["gpuctl"].__file__ or "").parent
    shutil.copytree(
        package, tmp_path / "gpuctl", ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
    )
    program = "from gpuctl.bundle import build; print(build().digest)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == build().digest
