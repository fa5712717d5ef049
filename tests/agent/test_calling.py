"""How verbs are called, over a real transport, with a stand-in at the far end that does what each test says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gpuctl.agent import Agent, Chunk
from gpuctl.errors import (
    ConnectionLost,
    DeadlinePassed,
    GpuctlError,
    NodeUnfit,
    NotFound,
    RefusedForSafety,
    UsageError,
)
from gpuctl.spec.inventory import Node
from tests.agent.conftest import bundle_of, with_agent
from tests.parts.pythons import pythons
from tests.parts.sshd import running_sshd
from tests.waiting import wait_until


def call(node: Node, program: str, **arguments: Any) -> dict[str, Any]:
    async def story(agent: Agent) -> dict[str, Any]:
        return await agent.call("try", program=program, **arguments)

    answer: dict[str, Any] = with_agent(node, story)
    return answer


def streamed(node: Node, program: str, **arguments: Any) -> list[dict[str, Any] | Chunk]:
    async def story(agent: Agent) -> list[dict[str, Any] | Chunk]:
        return [answer async for answer in agent.stream("try", program=program, **arguments)]

    answers: list[dict[str, Any] | Chunk] = with_agent(node, story)
    return answers


def test_the_request_arrives_as_sent(node: Node) -> None:
    answer = call(
        node, "say(argv=sys.argv[1:], **{k: request[k] for k in ('version', 'node', 'text')})", text="ä\n'\"$x"
    )
    assert answer["argv"] == ["try"]
    assert answer["version"] == 1
    assert answer["text"] == "ä\n'\"$x"
    assert answer["node"]["name"] == "gpu1" and answer["node"]["state_dir"] == node.state_dir


def test_the_bundle_is_sent_once_and_only_its_owner_may_touch_it(node: Node) -> None:
    async def story(agent: Agent) -> None:
        await asyncio.gather(*(agent.call("try", program="say(ok=1)") for _ in range(6)))

    with_agent(node, story)
    folder = Path(node.state_dir) / "agent"
    sent = folder / f"{bundle_of().digest}.pyz"
    first = sent.stat()
    assert (first.st_mode & 0o777, folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (
        0o600,
        0o700,
        0o700,
    )
    call(node, "say(ok=1)")
    assert sent.stat().st_ino == first.st_ino
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("harm", ["change", "open to others", "link", "folder open to others"])
def test_a_bundle_that_is_not_as_it_should_be_is_sent_again_not_run(local: Node, tmp_path: Path, harm: str) -> None:
    call(local, "say(ok=1)")
    folder = Path(local.state_dir) / "agent"
    sent = folder / f"{bundle_of().digest}.pyz"
    match harm:
        case "change":
            sent.write_bytes(bundle_of("print('harm')").data)
        case "open to others":
            sent.chmod(0o666)
        case "link":
            sent.rename(tmp_path / "elsewhere")
            sent.symlink_to(tmp_path / "elsewhere")
        case _:
            folder.chmod(0o777)
    assert call(local, "say(ok=2)") == {"ok": 2}
    assert sent.read_bytes() == bundle_of().data
    assert (sent.lstat().st_mode & 0o7777, folder.stat().st_mode & 0o7777) == (0o600, 0o700)


def test_a_bundle_that_was_removed_meanwhile_is_sent_again(local: Node) -> None:
    async def story(agent: Agent) -> None:
        for _ in range(3):
            assert await agent.call("try", program="say(ok=1)") == {"ok": 1}
            await asyncio.to_thread(shutil.rmtree, local.state_dir)

    with_agent(local, story)


def test_home_is_the_passwd_entrys(local: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    name = f".gpuctl-test-{os.getpid()}"
    monkeypatch.setenv("HOME", str(tmp_path))
    try:
        node = local.model_copy(update={"state_dir": f"~/{name}"})
        assert call(node, "say(path=sys.argv[0])")["path"].startswith(f"{home}/{name}/agent/")
    finally:
        shutil.rmtree(f"{home}/{name}", ignore_errors=True)


@pytest.mark.parametrize(
    ("code", "kind"), [(1, GpuctlError), (2, UsageError), (3, NotFound), (4, NodeUnfit), (5, RefusedForSafety)]
)
def test_an_error_that_the_node_answers_is_one_of_ours(local: Node, code: int, kind: type[GpuctlError]) -> None:
    program = f"say(error=dict(code={code}, what='it is taken', hint='wait')); sys.exit({code})"
    with pytest.raises(kind) as caught:
        call(local, program)
    assert type(caught.value) is kind
    assert (caught.value.what, caught.value.hint, caught.value.exit_code) == ("gpu1: it is taken", "wait", code)


@pytest.mark.parametrize(
    "program",
    [
        "os.write(1, b'no json\\n')",
        "os.write(1, b'[1, 2]\\n')",
        "os.write(1, b'[' * 100000 + b'\\n')",
        "os.write(1, b'\\xff\\xfe\\n')",
        "os.write(1, b'{\"half\": ')",
        "[os.write(1, b'x' * 65536) for _ in range(600)]",
        "say(chunk=10 ** 12)",
        "say(chunk=-1)",
        "say(chunk='many')",
        "say(chunk=100); os.write(1, b'too few')",
        "say(chunk=1, offset='far'); os.write(1, b'x')",
        "say(chunk=1, attempt=[1]); os.write(1, b'x')",
    ],
)
def test_what_is_no_answer_is_an_error_that_shows_it(local: Node, program: str) -> None:
    with pytest.raises(NodeUnfit, match="can't be read"):
        streamed(local, program)


@pytest.mark.parametrize("program", ["pass", "os.close(1)"])
def test_no_answer(local: Node, program: str) -> None:
    with pytest.raises(NodeUnfit, match="'try' was not answered"):
        call(local, program)


@pytest.mark.parametrize("program", ["1 / 0", "say(ok=1); 1 / 0"])
def test_a_verb_that_breaks_shows_its_last_words(node: Node, program: str) -> None:
    with pytest.raises(NodeUnfit, match="exit code 1: ZeroDivisionError: division by zero"):
        call(node, program)


def test_a_verb_that_is_killed(node: Node) -> None:
    with pytest.raises(NodeUnfit, match="exit code 137"):
        call(node, "os.kill(os.getpid(), 9)")


def test_an_answer_that_does_not_come(node: Node) -> None:
    async def story(agent: Agent) -> None:
        with pytest.raises(DeadlinePassed, match=r"no answer to 'try' within 1\.5 s"):
            await agent.call("try", deadline_s=1.5, program="time.sleep(1000)")

    with_agent(node, story)


def test_frames_arrive_byte_for_byte(node: Node) -> None:
    program = """
for n in range(40):
    data = bytes(range(256)) * n + b'{"chunk": 3}\\n'
    os.write(1, json.dumps({"chunk": len(data), "attempt": 2, "offset": n}).encode() + b"\\n" + data)
    say(heartbeat=1.5)
say(ended=True)
"""
    *chunks, last = streamed(node, program)
    assert last == {"ended": True}
    for n, chunk in enumerate(chunks):
        assert isinstance(chunk, Chunk)
        assert (chunk.attempt, chunk.offset) == (2, n)
        assert chunk.data == bytes(range(256)) * n + b'{"chunk": 3}\n'


def test_heartbeats_keep_a_quiet_stream_alive_and_reach_the_node(node: Node) -> None:
    """Quiet for longer than three heartbeats; the stand-in counts ours and answers each with its own."""
    program = """
for n in range(6):
    assert sys.stdin.buffer.raw.readline() == b"\\n"
    say(heartbeat=n)
say(heard=6, keepalive=request["keepalive"])
"""
    assert streamed(node, program) == [{"heard": 6, "keepalive": 0.3}]


def test_a_stream_that_stops_without_its_end_is_a_lost_connection(node: Node) -> None:
    with pytest.raises(ConnectionLost, match="ended the stream in between"):
        streamed(node, "say(n=1); sys.exit(0)")


def test_silence_is_a_lost_connection_and_no_failure(node: Node) -> None:
    begun = time.monotonic()
    with pytest.raises(ConnectionLost, match=r"nothing heard for 0\.9 s"):
        streamed(node, "time.sleep(1000)")
    assert time.monotonic() - begun < 20


def test_leaving_a_stream_ends_the_verb(node: Node, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"open({str(note)!r}, 'w').write(str(os.getpid()))\nwhile True: say(tick=1); time.sleep(0.05)"

    async def story(agent: Agent) -> None:
        async with aclosing(agent.stream("try", program=program)) as answers:
            async for answer in answers:
                assert answer == {"tick": 1}
                break

    with_agent(node, story)
    pid = int(note.read_text())
    wait_until(lambda: not lives(pid), what="the verb's end")


def test_cancelling_a_call_ends_the_verb(node: Node, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"

    async def story(agent: Agent) -> None:
        task = asyncio.create_task(agent.call("try", program=program))
        await asyncio.to_thread(wait_until, lambda: note.exists() and note.read_text(), what="the verb's pid")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with_agent(node, story)
    wait_until(lambda: not lives(int(note.read_text())), what="the verb's end")


def test_many_streams_and_calls_at_once(node: Node) -> None:
    async def story(agent: Agent) -> None:
        async def stream(n: int) -> list[Any]:
            return [answer async for answer in agent.stream("try", program=f"[say(n={n}) for _ in range(50)]")]

        streams, calls = await asyncio.gather(
            asyncio.gather(*(stream(n) for n in range(6))),
            asyncio.gather(*(agent.call("try", program=f"say(n={n})") for n in range(12))),
        )
        assert streams == [[{"n": n}] * 50 for n in range(6)]
        assert calls == [{"n": n} for n in range(12)]

    with_agent(node, story)


def test_no_python_there(node: Node) -> None:
    for python in ("no-such-python", "/etc/passwd"):
        with pytest.raises(NodeUnfit, match="no usable Python there") as caught:
            call(node.model_copy(update={"python": python}), "say(ok=1)")
        assert "python:" in caught.value.hint


def test_what_is_called_python_but_is_not(local: Node) -> None:
    with pytest.raises(NodeUnfit, match="exit code"):
        call(local.model_copy(update={"python": "cat"}), "say(ok=1)")


def test_a_python_that_is_too_old_says_which_it_is(local: Node, tmp_path: Path) -> None:
    """A Python that takes itself for an older one; real old ones, where there are any, follow."""
    old = tmp_path / "python3"
    program = "import sys; sys.version_info = (3, 6, 8); exec(sys.argv[3])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -c "{program}" "$@"\n')
    old.chmod(0o755)
    with pytest.raises(NodeUnfit, match=r"Python 3\.6\.8 is too old"):
        call(local.model_copy(update={"python": str(old)}), "say(ok=1)")


@pytest.mark.parametrize("python", pythons("3.5", "3.6", "3.7"))
def test_real_old_pythons_say_which_they_are(local: Node, python: str) -> None:
    with pytest.raises(NodeUnfit, match=r"Python 3\.[0-9.]+ is too old"):
        call(local.model_copy(update={"python": python}), "say(ok=1)")


@pytest.mark.parametrize("python", pythons("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"))
def test_every_python_from_3_8_on(local: Node, python: str) -> None:
    program = "say(version=sys.version_info[:2], isolated=sys.flags.isolated)"
    answer = call(local.model_copy(update={"python": python}), program)
    assert answer["version"] >= [3, 8] and answer["isolated"] == 1


def test_what_login_scripts_print_is_noise(tmp_path: Path) -> None:
    """bash reads ~/.bashrc for a command over SSH; many print a greeting there."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("echo 'Welcome!'; printf 'no newline'; echo oh >&2\n")
    with running_sshd(tmp_path / "sshd", f"SetEnv SHLVL=0 HOME={home}") as server:
        assert call(server.node(), "say(ok=1)") == {"ok": 1}
        with pytest.raises(NodeUnfit, match="ZeroDivisionError"):
            call(server.node(), "1 / 0")


def test_a_state_folder_that_can_not_be_written(local: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeUnfit, match="can't write to") as caught:
        call(local.model_copy(update={"state_dir": str(tmp_path / "file" / "below")}), "say(ok=1)")
    assert "state_dir" in caught.value.hint


def test_a_full_disk_there(local: Node, tmp_path: Path) -> None:
    """/dev/full says ENOSPC at each write, and a file-size limit does at ours."""
    limited = tmp_path / "python3"
    limited.write_text("#!/bin/bash\nulimit -f 0\ntrap '' XFSZ\nexec python3 \"$@\"\n")
    limited.chmod(0o755)
    with pytest.raises(NodeUnfit, match=r"can't write to .*: File too large"):
        call(local.model_copy(update={"python": str(limited)}), "say(ok=1)")
    assert not list((Path(local.state_dir) / "agent").iterdir())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
