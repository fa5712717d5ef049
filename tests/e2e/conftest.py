from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.parts.leftovers import end_all
from tests.parts.sshd import Sshd, running_sshd


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory, own_mounts: bool) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A simulated node on this machine."""
    yield Site(tmp_path)
    end_all(tmp_path)


@pytest.fixture
def far(tmp_path: Path, sshd: Sshd) -> Iterator[Site]:
    """The same, and `gpu1` behind a real sshd."""
    yield Site(tmp_path, sshd)
    end_all(tmp_path)
