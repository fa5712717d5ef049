"""What every transport promises, checked on each of them: real processes, a real sshd."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuctl.errors import CommandOverdue, UsageError
from gpuctl.spec.inventory import Node
from gpuctl.transport import Terminal, Transport, open_transport, run
from gpuctl.transport.base import get, put
from tests.parts.sshd import Sshd
from tests.waiting import wait_until

HOSTILE = [
    "",
    " ",
    "-x",
    "--",
    "two words",
    "it's",
    'say "so"',
    "$HOME ${HOME} $(id) `id`",
    "a\nb\n",
    "\n",
    "tab\there",
    "back\\slash \\n \\0101",
    "%s %b %%",
    "* ? [a] {b,c} ~ !x #y ; & | < > ( )",
    "häß – 模型 🔥",
    "\x01\x7f",
    os.fsdecode(b"not utf-8: \xff\xfe"),
]
SHOW_ARGV = "import os, sys; os.write(1, b'\\0'.join(os.fsencode(word) for word in sys.argv[1:]))"


@pytest.fixture(params=["local", "asyncssh"])
def node(request: pytest.FixtureRequest, sshd: Sshd) -> Node:
    return Node(name="here", transport="local") if request.param == "local" else sshd.node()


@asynccontextmanager
async def opened(node: Node) -> AsyncIterator[Transport]:
    transport = open_transport(node)
    try:
        yield transport
    finally:
        await transport.aclose()


def on(node: Node, story: Callable[[Transport], Awaitable[None]]) -> None:
    """Run a test's story on an open transport, with an end to it."""

    async def whole() -> None:
        async with asyncio.timeout(60), opened(node) as transport:
            await story(transport)

    asyncio.run(whole())


def test_argv_arrives_as_sent(node: Node) -> None:
    async def story(transport: Transport) -> None:
        done = await run(transport, [sys.executable, "-c", SHOW_ARGV, *HOSTILE], deadline_s=20)
        assert done.exit_code == 0, done.stderr
        assert [os.fsdecode(word) for word in done.stdout.split(b"\0")] == HOSTILE

    on(node, story)


@pytest.mark.parametrize("argv", [[], ["nul\0byte"]])
def test_what_no_system_can_pass_on_is_refused(node: Node, argv: list[str]) -> None:
    async def story(transport: Transport) -> None:
        with pytest.raises(UsageError):
            await run(transport, argv, deadline_s=20)

    on(node, story)


def test_stdin_arrives_to_its_end_and_output_comes_back_whole(node: Node) -> None:
    data = os.urandom(5_000_000)

    async def story(transport: Transport) -> None:
        done = await run(transport, ["cat"], stdin=data, deadline_s=30)
        assert (done.exit_code, done.stderr) == (0, b"")
        assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()

    on(node, story)


def test_both_outputs_flood_at_once_and_stay_apart(node: Node) -> None:
    program = "import os\nfor _ in range(200): os.write(1, b'o' * 20000); os.write(2, b'e' * 20000)"

    async def story(transport: Transport) -> None:
        done = await run(transport, [sys.executable, "-c", program], deadline_s=30)
        assert (done.stdout, done.stderr) == (b"o" * 4_000_000, b"e" * 4_000_000)

    on(node, story)


def test_a_process_that_does_not_read_its_input_is_no_error(node: Node) -> None:
    async def story(transport: Transport) -> None:
        done = await run(transport, ["true"], stdin=b"x" * 10_000_000, deadline_s=30)
        assert done.exit_code == 0

    on(node, story)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "exit 255"], 255),
        (["no-such-command-anywhere"], 127),
        (["/no/such/path"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "kill -SEGV $$"], 139),
    ],
)
def test_exit_codes_are_a_shells(node: Node, argv: list[str], code: int) -> None:
    async def story(transport: Transport) -> None:
        assert (await run(transport, argv, deadline_s=20)).exit_code == code

    on(node, story)


def test_output_comes_while_the_process_lives(node: Node) -> None:
    async def story(transport: Transport) -> None:
        process = await transport.start(["cat"])
        for word in (b"one\n", b"two\n"):
            await process.write(word)
            assert await process.read() == word
        await process.close_stdin()
        assert await process.read() == b""
        assert await process.wait() == 0
        await process.kill()

    on(node, story)


def test_kill_ends_it_and_all_waiting_for_it(node: Node) -> None:
    async def story(transport: Transport) -> None:
        process = await transport.start(["sh", "-c", "trap '' TERM HUP; echo $$; while :; do sleep 1; done"])
        pid = int(await process.read())
        assert not ended(pid)
        await process.kill()
        await process.kill()  # twice is no error
        await asyncio.to_thread(wait_until, lambda: ended(pid), what="its end")

    on(node, story)


def test_a_deadline_ends_the_process(node: Node) -> None:
    marker = f"1000.{secrets.randbelow(10**9)}"

    async def story(transport: Transport) -> None:
        script = f"echo out; echo err >&2; sleep {marker}"
        with pytest.raises(CommandOverdue, match=r"sh did not end within 2 s") as late:
            await run(transport, ["sh", "-c", script], deadline_s=2)
        assert (late.value.stdout, late.value.stderr) == (b"out\n", b"err\n"), "what it said is kept"
        await asyncio.to_thread(wait_until, lambda: not running(marker), what="the sleeper's end")

    on(node, story)


def test_cancelling_ends_the_process(node: Node) -> None:
    marker = f"1000.{secrets.randbelow(10**9)}"

    async def story(transport: Transport) -> None:
        task = asyncio.create_task(run(transport, ["sleep", marker], deadline_s=100))
        await asyncio.to_thread(wait_until, lambda: running(marker), what="the sleeper")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: not running(marker), what="the sleeper's end")

    on(node, story)


def test_more_processes_at_once_than_a_connection_has_channels(node: Node) -> None:
    async def story(transport: Transport) -> None:
        calls = (run(transport, ["sh", "-c", f"cat; exit {n}"], stdin=b"%d" % n, deadline_s=30) for n in range(25))
        done = await asyncio.gather(*calls)
        assert [(each.exit_code, each.stdout) for each in done] == [(n, b"%d" % n) for n in range(25)]

    on(node, story)


def test_put_and_get(node: Node, tmp_path: Path) -> None:
    data, path = os.urandom(300_000), tmp_path / "a file's name; with $things"

    async def story(transport: Transport) -> None:
        await put(transport, data, str(path), deadline_s=20)
        assert path.read_bytes() == data
        assert await get(transport, str(path), deadline_s=20) == data

    on(node, story)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_process_can_have_a_terminal(node: Node) -> None:
    async def story(transport: Transport) -> None:
        script = "stty size; echo $TERM; read word; echo got-$word; stty size; tty <&1 >/dev/null && kill -INT $$"
        process = await transport.start(["sh", "-c", script], terminal=Terminal("xterm-256color", 91, 33))
        seen = b""
        while b"xterm-256color" not in seen:
            seen += await process.read()
        assert b"33 91" in seen
        await process.resize(120, 50)
        await process.write(b"hello\n")
        while part := await process.read():
            seen += part
        assert b"got-hello" in seen
        assert b"50 120" in seen
        assert await process.wait() == 130
        await process.kill()

    on(node, story)


def ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def running(argument: str) -> bool:
    """Does a live process have this argument?"""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"sleep") and argument.encode() in words:
                return True
    return False
