"""`gpuctl trust`: fetch a host's keys, show their fingerprints, and write them where connections look for them.

Whether they are the right ones only a person can tell, who compares the fingerprints with the machine's own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import asyncssh

from gpuctl.errors import Unreachable, UsageError
from gpuctl.transport import hostkeys
from gpuctl.transport.connecting import Connection, Route, route, through
from gpuctl.transport.mapping import CHECK_NETWORK, mapped

if TYPE_CHECKING:
    from gpuctl.spec.inventory import Node

# One of each kind, as ssh-keyscan asks. An RSA key is asked for by the signatures that are still safe.
KINDS = (["ssh-ed25519"], ["ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384"], ["rsa-sha2-512", "rsa-sha2-256"])


@dataclass(frozen=True)
class HostKey:
    kind: str  # ssh-ed25519, …
    fingerprint: str  # SHA256:…
    line: str  # as a known_hosts file has it


@dataclass(frozen=True)
class HostKeys:
    """What a host shows. `standing`: whether these keys are known already, others are, or none."""

    node: str
    host: str  # as a known_hosts file names it
    keys: list[HostKey]
    file: Path
    standing: Literal["known", "changed", "unknown"]


async def host_keys(node: Node) -> HostKeys:
    """Asks the node's host, through its jump hosts, whose keys must be trusted already. Logs in nowhere else."""
    if node.transport == "local":
        raise UsageError(f"node {node.name} is this machine: it has no host key", "There is nothing to trust.")
    way = await route(node)
    limit = float(node.connect_timeout)
    try:
        async with asyncio.timeout(limit * len(KINDS)), through(way) as tunnel:
            found = [await _fetched(way, kinds, tunnel) for kinds in KINDS]
    except TimeoutError:
        raise Unreachable(f"{way.where}: no answer within {limit * len(KINDS):g} s", CHECK_NETWORK) from None
    keys = [key for key in found if key is not None]
    if not keys:
        raise Unreachable(f"{way.where}: its SSH server shows no host key of a kind that is known here", CHECK_NETWORK)
    files = way.known_hosts_files
    known = hostkeys.of_host(hostkeys.trusted(files), _name(way), way.options.port)
    standing: Literal["known", "changed", "unknown"] = "unknown"
    if known:
        # One that is known is enough: the host has proven that it holds it.
        standing = "known" if set(known) & set(keys) else "changed"
    host = _entry(way)
    return HostKeys(node.name, host, [_shown(host, key) for key in keys], files[0], standing)


def trust(found: HostKeys) -> None:
    """Writes them in place of all others that the file has for this host; the file as it was stays beside it."""
    try:
        file = found.file.resolve()  # it may be a link into somebody's dotfiles
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        kept = [line for line in before.splitlines() if not _only_about(line, found.host)]
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(kept) < len(before.splitlines()):
            _write(Path(f"{file}.old"), before)
        _write(file, "".join(f"{line}\n" for line in [*kept, *(key.line for key in found.keys)]))
    except OSError as error:
        raise UsageError(f"{found.file} can't be written: {error.strerror}", "Mend its owner or mode.") from None


async def _fetched(way: Route, kinds: list[str], tunnel: Connection | None) -> asyncssh.SSHKey | None:
    with mapped(way.where):
        try:
            return await asyncssh.get_server_host_key(
                way.options.host,
                way.options.port,
                tunnel=tunnel,
                proxy_command=way.options.proxy_command,
                server_host_key_algs=kinds,
                config=None,
            )
        except (asyncssh.KeyExchangeFailed, asyncssh.ConnectionLost, ConnectionResetError):
            return None  # it has no key of this kind: either side may find that out first, and hang up


def _name(way: Route) -> str:
    return way.options.host_key_alias or way.options.host


def _entry(way: Route) -> str:
    return _name(way) if way.options.port == asyncssh.DEFAULT_PORT else f"[{_name(way)}]:{way.options.port}"


def _shown(host: str, key: asyncssh.SSHKey) -> HostKey:
    public = key.export_public_key("openssh").decode("ascii").strip()
    return HostKey(key.get_algorithm(), key.get_fingerprint(), f"{host} {public}")


def _only_about(line: str, host: str) -> bool:
    """Is it an entry for this host alone, plain or hashed? One with a marker or several names is a person's own."""
    pattern = line.split(" ", 1)[0]
    if pattern.startswith("|1|"):
        # A name in brackets matches as it is only if no port is given beside it.
        return bool(asyncssh.import_known_hosts(line).match(host, "", None)[0])
    return pattern == host


def _write(path: Path, text: str) -> None:
    """Aside, then renamed, so that no login meanwhile finds half of it."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink()
        raise
