from __future__ import annotations

import pytest

from tests.parts.mounts import enter_own_mounts


@pytest.fixture(scope="session", autouse=True)
def own_mounts(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this process's tests have a plain login and a tmux server of their own."""
    return enter_own_mounts(tmp_path_factory.mktemp("mounts"))
