"""What only SSH has: who is trusted, who is let in, connections that are lost, jumps, limits of the server."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from gpuctl.errors import (
    AuthRefused,
    ConnectionLost,
    GpuctlError,
    HostKeyChanged,
    HostKeyUnknown,
    Unreachable,
    UsageError,
)
from gpuctl.node.processes import find
from gpuctl.spec.inventory import Node
from gpuctl.transport import Transport, mapping, run
from gpuctl.transport.ssh import SshProcess, as_command
from gpuctl.transport.trust import host_keys, trust
from tests.parts.sshd import Sshd, free_port, generate_key, known_hosts_line, running_sshd
from tests.transport.test_contract import HOSTILE, SHOW_ARGV, ended, on, opened
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _nobodys_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No agent, no ~/.ssh: only what the inventory entry names."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def answer_of(node: Node, *argv: str) -> bytes:
    answers: list[bytes] = []

    async def story(transport: Transport) -> None:
        answers.append((await run(transport, argv or ["echo", "here"], deadline_s=20)).stdout)

    on(node, story)
    return answers[0]


def refused(node: Node, kind: type[GpuctlError]) -> GpuctlError:
    with pytest.raises(kind) as caught:
        answer_of(node)
    assert caught.value.hint
    return caught.value


def test_many_processes_share_one_connection(own_sshd: Sshd) -> None:
    async def story(transport: Transport) -> None:
        await asyncio.gather(*(run(transport, ["true"], deadline_s=20) for _ in range(20)))
        assert len(own_sshd.connections()) == 1

    on(own_sshd.node(), story)
    wait_until(lambda: not own_sshd.connections(), what="the connection's end")


def test_a_wrong_key(sshd: Sshd, tmp_path: Path) -> None:
    generate_key(tmp_path / "other")
    error = refused(sshd.node(identity_file=str(tmp_path / "other")), AuthRefused)
    assert "gpu1 (127.0.0.1)" in error.what and error.exit_code == 4


def test_a_missing_key_file(sshd: Sshd, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(sshd.node(identity_file=str(tmp_path / "none")), UsageError).what


def test_a_key_with_a_passphrase_is_used_from_the_agent(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ssh_agent: str
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(sshd.key.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(locked)], check=True, capture_output=True)
    refused(sshd.node(identity_file=str(locked)), AuthRefused)
    monkeypatch.setenv("SSH_AUTH_SOCK", ssh_agent)
    subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True, env={**os.environ, "SSH_AUTH_SOCK": ssh_agent})
    assert answer_of(sshd.node(identity_file=str(locked))) == b"here\n"
    assert answer_of(sshd.node(identity_file=None)) == b"here\n"


@pytest.fixture
def ssh_agent(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: Path(path).exists(), what="the agent's socket")
        yield path
    finally:
        agent.terminate()
        agent.wait()


def test_an_unknown_host_key(sshd: Sshd, tmp_path: Path) -> None:
    error = refused(sshd.node(known_hosts=str(tmp_path / "none")), HostKeyUnknown)
    fingerprint = asyncssh.read_public_key(str(sshd.folder / "host_key.pub")).get_fingerprint()
    assert fingerprint in error.what
    assert "gpuctl trust gpu1" in error.hint


def test_a_changed_host_key(sshd: Sshd, tmp_path: Path) -> None:
    generate_key(tmp_path / "former")
    (tmp_path / "known").write_text(known_hosts_line(sshd.port, tmp_path / "former"))
    error = refused(sshd.node(known_hosts=str(tmp_path / "known")), HostKeyChanged)
    assert asyncssh.read_public_key(str(sshd.folder / "host_key.pub")).get_fingerprint() in error.what
    assert asyncssh.read_public_key(str(tmp_path / "former.pub")).get_fingerprint() in error.what


def test_a_host_known_by_keys_that_it_no_longer_has_has_changed(sshd: Sshd, tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    key.write_public_key(str(tmp_path / "former.pub"))
    (tmp_path / "known").write_text(known_hosts_line(sshd.port, tmp_path / "former"))
    refused(sshd.node(known_hosts=str(tmp_path / "known")), HostKeyChanged)


def test_a_broken_known_hosts_file(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("nonsense\n")
    assert str(tmp_path / "known") in refused(sshd.node(known_hosts=str(tmp_path / "known")), UsageError).what


def test_no_configuration_turns_the_check_off(sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n StrictHostKeyChecking no\n UserKnownHostsFile none\n GlobalKnownHostsFile none\n")
    refused(sshd.node(known_hosts="~/.ssh/known_hosts", ssh_config=str(config)), HostKeyUnknown)


def test_trust_makes_an_unknown_host_known(sshd: Sshd, tmp_path: Path) -> None:
    node = sshd.node(known_hosts=str(tmp_path / "new" / "known"))
    found = asyncio.run(host_keys(node))
    assert found.standing == "unknown"
    assert [key.kind for key in found.keys] == ["ssh-ed25519"]
    trust(found)
    assert answer_of(node) == b"here\n"
    assert asyncio.run(host_keys(node)).standing == "known"


def test_trust_replaces_a_changed_key_and_no_other_line(sshd: Sshd, tmp_path: Path) -> None:
    generate_key(tmp_path / "former")
    former = known_hosts_line(sshd.port, tmp_path / "former")
    others = f"# mine\n[127.0.0.1]:1 {former.split(' ', 1)[1]}other.example,[127.0.0.1]:{sshd.port} ssh-ed25519 AAAA\n"
    known = tmp_path / "known"
    known.write_text(others + former)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    hashed = known.read_text()
    known.write_text(f"{hashed}{former}")
    node = sshd.node(known_hosts=str(known))
    found = asyncio.run(host_keys(node))
    assert found.standing == "changed"
    trust(found)
    assert answer_of(node) == b"here\n"
    assert former not in known.read_text()
    assert former in Path(f"{known}.old").read_text()
    assert len(known.read_text().splitlines()) == len(hashed.splitlines())  # the hashed one went, the new one came


def test_nobody_listens() -> None:
    node = Node(name="gpu1", address="127.0.0.1", port=free_port(), ssh_config="/nonexistent")
    assert "refused" in refused(node, Unreachable).what


def test_a_name_that_nobody_knows() -> None:
    node = Node(name="gpu1", address="no-such-host.invalid", ssh_config="/nonexistent")
    assert "no-such-host.invalid" in refused(node, Unreachable).what


def test_a_server_that_says_nothing() -> None:
    async def story() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        node = Node(name="gpu1", address="127.0.0.1", port=port, connect_timeout=0.3, ssh_config="/nonexistent")
        async with opened(node) as transport:
            with pytest.raises(Unreachable, match=r"no login within 0\.3 s"):
                await transport.start(["true"])
        server.close()

    asyncio.run(story())


def test_a_server_that_is_no_ssh_server() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with opened(Node(name="gpu1", address="127.0.0.1", port=port, ssh_config="/nonexistent")) as transport:
            with pytest.raises(Unreachable):
                await transport.start(["true"])
        server.close()

    asyncio.run(story())


def test_what_the_entry_leaves_out_the_ssh_configuration_says(sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host alias\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {sshd.key}\n"
        f" UserKnownHostsFile {sshd.known_hosts}\n"
    )
    assert answer_of(Node(name="gpu1", address="alias", ssh_config=str(config))) == b"here\n"


def test_a_configuration_that_can_not_be_read(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n Port many\n")
    refused(sshd.node(ssh_config=str(tmp_path / "config")), UsageError)


def test_a_node_without_an_address() -> None:
    refused(Node(name="gpu1"), UsageError)


def test_through_two_jump_hosts(sshd: Sshd, own_sshd: Sshd, tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.write_text(sshd.known_hosts.read_text() + own_sshd.known_hosts.read_text())
    (own_sshd.folder / "id_ed25519.pub").write_text(Path(f"{sshd.key}.pub").read_text())
    jump = f"127.0.0.1:{own_sshd.port}"
    assert answer_of(sshd.node(proxy_jump=f"{jump},{jump}", known_hosts=str(both))) == b"here\n"
    assert own_sshd.log.count("Accepted publickey") == 2
    config = tmp_path / "config"
    config.write_text(f"Host 127.0.0.1\n ProxyJump {jump}\n")
    error = refused(sshd.node(proxy_jump=jump), HostKeyUnknown)  # the jump host's key is checked as well
    assert "on the way at 127.0.0.1" in error.what


def test_a_cut_connection_is_lost_not_failed_and_the_next_call_connects_again(own_sshd: Sshd) -> None:
    async def story(transport: Transport) -> None:
        process = await transport.start(["sh", "-c", "echo begun; exec sleep 1000"])
        assert await process.read() == b"begun\n"
        own_sshd.cut()
        with pytest.raises(ConnectionLost):
            while await process.read():
                pass
            await process.wait()
        with pytest.raises(ConnectionLost):
            await process.wait()
        await process.kill()
        assert (await run(transport, ["echo", "again"], deadline_s=20)).stdout == b"again\n"

    on(own_sshd.node(), story)


def test_a_pid_that_is_anothers_by_now_is_left_alone(sshd: Sshd) -> None:
    """This machine slept, the process ended meanwhile, and its number was given to the next one."""

    async def story(transport: Transport) -> None:
        process = await transport.start(["sh", "-c", "echo $$; exec sleep 1000"])
        assert isinstance(process, SshProcess)
        pid = int(await process.read())
        await process._learn_pid()
        there = find(pid)
        assert there is not None and process._begun == str(there.id.start)
        process._begun = str(there.id.start - 1)
        await process.kill()
        assert not ended(pid)
        os.kill(pid, 9)

    on(sshd.node(), story)


def test_a_connection_that_silently_died_is_found_dead_and_replaced(own_sshd: Sshd) -> None:
    async def story(transport: Transport) -> None:
        assert (await run(transport, ["true"], deadline_s=20)).exit_code == 0
        frozen = own_sshd.connections()
        for pid in frozen:
            os.kill(pid, 19)  # SIGSTOP: the peer's kernel still acknowledges, but nobody answers
        try:
            assert (await run(transport, ["echo", "again"], deadline_s=20)).stdout == b"again\n"
        finally:
            for pid in frozen:
                os.kill(pid, 18)

    on(own_sshd.node(connect_timeout=1), story)


def test_a_server_with_few_channels(tmp_path: Path) -> None:
    async def story(transport: Transport) -> None:
        done = await asyncio.gather(*(run(transport, ["echo", str(n)], deadline_s=30) for n in range(12)))
        assert [int(each.stdout) for each in done] == list(range(12))

    with running_sshd(tmp_path / "sshd", "MaxSessions 2") as server:
        on(server.node(), story)


def test_a_server_without_any_channel(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd", "MaxSessions 0") as server:
        assert "refuses another channel" in refused(server.node(), Unreachable).what


def test_a_server_that_drops_some_of_many_logins(tmp_path: Path) -> None:
    async def story() -> None:
        async def one() -> int:
            async with opened(server.node()) as transport:
                return (await run(transport, ["true"], deadline_s=30)).exit_code

        assert await asyncio.gather(*(one() for _ in range(12))) == [0] * 12

    with running_sshd(tmp_path / "sshd", "MaxStartups 2:30:6") as server:
        asyncio.run(story())


def test_standard_error_is_the_processs_own(sshd: Sshd) -> None:
    """The line that says its pid is ours, and is not shown."""

    async def story(transport: Transport) -> None:
        done = await run(transport, ["sh", "-c", "echo mine >&2"], deadline_s=20)
        assert done.stderr == b"mine\n"

    on(sshd.node(), story)


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh", "ksh", "busybox"])
def test_the_command_is_the_same_in_every_login_shell(shell: str) -> None:
    argv = ["python3", "-c", SHOW_ARGV, *HOSTILE]
    words = [shell, "sh", "-c"] if shell == "busybox" else [shell, "-c"]
    try:
        done = subprocess.run([*words, as_command(argv)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"no {shell} here")
    assert [os.fsdecode(word) for word in done.stdout.split(b"\0")] == HOSTILE, done.stderr


def test_every_exception_of_asyncssh_is_one_of_ours() -> None:
    ours_to_ask = {"BreakReceived", "SignalReceived", "TerminalSizeChanged", "ProcessError"}  # raised only if asked for
    found = {
        name: kind for name, kind in vars(asyncssh).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    mapped = tuple(kind for kinds, *_ in mapping._MAPPED for kind in kinds)
    unmapped = {name for name, kind in found.items() if not issubclass(kind, mapped)}
    assert unmapped <= ours_to_ask


def test_a_fault_of_ours_is_not_dressed_up_as_the_nodes() -> None:
    with pytest.raises(ZeroDivisionError), mapping.mapped("gpu1"):
        _ = 1 / 0


def test_a_forced_command_runs_instead_of_ours(tmp_path: Path) -> None:
    async def story(transport: Transport) -> None:
        done = await run(transport, ["echo", "ours"], deadline_s=20)
        assert (done.stdout, done.exit_code) == (b"forced\n", 3)
        assert done.stderr == b"e" * 500_000

    script = tmp_path / "forced"
    script.write_text("#!/bin/sh\nhead -c 500000 /dev/zero | tr '\\0' e >&2\necho forced\nexit 3\n")
    script.chmod(0o755)
    with running_sshd(tmp_path / "sshd", f"ForceCommand {script}") as server:
        on(server.node(), story)
