from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.parts.leftovers import end_all
from tests.parts.sshd import Sshd, running_sshd

OWN_TMUX = 'mkdir -p "$0" /tmp/tmux-0 && chmod 700 "$0" /tmp/tmux-0 && mount --bind "$0" /tmp/tmux-0 && exec "$@"'
"""tmux keeps its sockets in /tmp/tmux-UID. Behind this, a server has its own: nobody else's views can be ended."""


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    prefix = ["unshare", "--mount", "sh", "-c", OWN_TMUX, str(folder / "tmux")] if os.getuid() == 0 else []
    with running_sshd(folder, prefix=prefix) as server:
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
