"""A real OpenSSH server on 127.0.0.1, with its own host key and one key that may log in, and nodes that lead to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from gpuctl.spec.inventory import Node
from tests.waiting import wait_until

PROGRAM = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Sshd:
    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def known_hosts(self) -> Path:
        """Its key, under its address."""
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        """The private key that may log in."""
        return self.folder / "id_ed25519"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def node(self, name: str = "gpu1", **changes: Any) -> Node:
        """A node whose state stays below this server's folder; the SSH configuration is an empty one."""
        keys: dict[str, Any] = {
            "address": "127.0.0.1",
            "port": self.port,
            "identity_file": str(self.key),
            "known_hosts": str(self.known_hosts),
            "ssh_config": str(self.folder / "no-config"),
            "state_dir": str(self.folder / "state"),
            "lock_dir": str(self.folder / "locks"),
        }
        return Node(name=name, **{**keys, **changes})

    def connections(self) -> list[int]:
        """The pids of the processes that serve a connection each."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def cut(self) -> None:
        """End every connection, as a network does that is gone: from the server's side, without a word."""
        for pid in self.connections():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """The server and its connections; what was started over them lives on. Nothing where it was stopped before."""
        if self.process.poll() is not None:
            return
        self.cut()
        self.process.terminate()
        self.process.wait()


def generate_key(path: Path) -> asyncssh.SSHKey:
    """A private key at `path`, its public half beside it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(path))
    path.chmod(0o600)
    key.write_public_key(f"{path}.pub")
    return key


@contextlib.contextmanager
def running_sshd(folder: Path, *options: str) -> Iterator[Sshd]:
    """`options` are lines of sshd_config that come before ours: sshd takes the first value that it reads."""
    server = _started(folder, options)
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def known_hosts_line(port: int, host_key: Path) -> str:
    return f"[127.0.0.1]:{port} {Path(f'{host_key}.pub').read_text()}"


def _started(folder: Path, options: tuple[str, ...]) -> Sshd:
    assert PROGRAM, "sshd is not installed: apt install openssh-server"
    Path("/run/sshd").mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    generate_key(folder / "host_key")
    generate_key(folder / "id_ed25519")
    port = free_port()
    (folder / "known_hosts").write_text(known_hosts_line(port, folder / "host_key"))
    configuration = [
        *options,
        "ListenAddress 127.0.0.1",
        f"Port {port}",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/id_ed25519.pub",
        f"PidFile {folder}/pid",
        "PermitRootLogin yes",
        "StrictModes no",  # the test's folder is below a world-writable one
        "UsePAM no",
        "UseDNS no",
        "PasswordAuthentication no",
        "KexAlgorithms curve25519-sha256",  # the default one costs 160 ms of CPU a connection
        "SetEnv SHLVL=1",  # else bash takes itself for a remote shell, and reads ~/.bashrc
        "Subsystem sftp internal-sftp",
    ]
    (folder / "sshd_config").write_text("\n".join(configuration) + "\n")
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "-D", "-e", "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    server = Sshd(folder, port, process)
    wait_until(lambda: _listens(server), what=f"sshd on port {port}")
    return server


def _listens(server: Sshd) -> bool:
    assert server.process.poll() is None, server.log
    return "Server listening" in server.log
