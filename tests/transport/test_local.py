"""What only processes on this machine have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

import pytest

from gpuctl.transport.local import LocalTransport


def test_one_that_is_ended_in_the_moment_of_its_end_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio complains on stderr where somebody else takes a process's exit status."""

    async def end_at_its_end() -> int:
        process = await LocalTransport().start(["sh", "-c", "echo $$; exit 7"])
        pid = int(await process.read())
        while _runs(pid):
            pass
        await process.kill()
        return await process.wait()

    async def many() -> list[int]:
        return [code for _ in range(20) for code in await asyncio.gather(*(end_at_its_end() for _ in range(8)))]

    with caplog.at_level(logging.WARNING, "asyncio"):
        codes = asyncio.run(many())
    assert caplog.messages == []
    assert set(codes) == {7}


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        os.kill(pid, 0)
        return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False
