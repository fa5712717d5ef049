"""From an inventory entry to an open, authenticated SSH connection, over jump hosts where there are any.

What the entry leaves out, ~/.ssh/config says. Two things it can't say: that host keys are not checked, and that
somebody is to be asked for something.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import tenacity

from gpuctl.errors import ConnectionLost, Unreachable, UsageError
from gpuctl.transport import hostkeys
from gpuctl.transport.mapping import CHECK_NETWORK, mapped

if TYPE_CHECKING:
    from gpuctl.spec.inventory import Node

ATTEMPTS = 4  # an sshd with MaxStartups drops some of many simultaneous logins before they have said a word
HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@]+)(?::(?P<port>\d+))?/?")

Options = asyncssh.SSHClientConnectionOptions
Connection = asyncssh.SSHClientConnection


@dataclass(frozen=True)
class Place:
    """One SSH server on the way, the node's host last."""

    address: str
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None


@dataclass(frozen=True)
class Route:
    """The servers to go through, then the host; `options` are the host's."""

    node: Node
    where: str
    hops: list[Place]
    host: Place
    options: Options

    @property
    def known_hosts_files(self) -> list[Path]:
        return hostkeys.files(self.node, self.options.config)


def place_of(node: Node) -> str:
    """For messages: its name, and its address where that says more."""
    return node.name if node.address in (None, node.name) else f"{node.name} ({node.address})"


async def route(node: Node) -> Route:
    """Reads the SSH configuration; sends nothing yet."""
    if node.address is None:
        raise UsageError(
            f"node {node.name} has no address", "Give it `address:` in the inventory, or `transport: local`."
        )
    where = place_of(node)
    host = Place(node.address, node.port, node.user, node.identity_file)
    options = await _options(node, host, where)
    jumps = node.proxy_jump if node.proxy_jump is not None else options.tunnel
    hops = [_hop(text, node) for text in jumps.split(",")] if isinstance(jumps, str) else []
    return Route(node, where, hops, host, options)


@asynccontextmanager
async def connected(route: Route) -> AsyncIterator[Connection]:
    """The connection to the host, and those that it goes through; all are closed at the end."""
    async with AsyncExitStack() as stack:
        tunnel: Connection | None = None
        for hop in route.hops:
            where = f"{route.where}, on the way at {hop.address}"
            options = await _options(route.node, hop, where)
            tunnel = await stack.enter_async_context(_one(route, options, where, tunnel))
        yield await stack.enter_async_context(_one(route, route.options, route.where, tunnel))


@asynccontextmanager
async def through(route: Route) -> AsyncIterator[Connection | None]:
    """The connection to the last jump host; None where the host is reached directly."""
    if not route.hops:
        yield None
        return
    *before, last = route.hops
    options = await _options(route.node, last, route.where)
    async with connected(Route(route.node, route.where, before, last, options)) as connection:
        yield connection


@asynccontextmanager
async def _one(route: Route, options: Options, where: str, tunnel: Connection | None) -> AsyncIterator[Connection]:
    connection = await _patiently(route, options, where, tunnel)
    try:
        yield connection
    finally:
        connection.close()
        try:
            async with asyncio.timeout(1):  # politely; a dead network would keep us for minutes
                await connection.wait_closed()
        except TimeoutError:
            connection.abort()


async def _patiently(route: Route, options: Options, where: str, tunnel: Connection | None) -> Connection:
    """Within `connect_timeout`; again, with jitter, where the server hangs up before the login."""
    limit = float(route.node.connect_timeout)
    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(ConnectionLost),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=2),
        reraise=True,
    )
    try:
        async with asyncio.timeout(limit):
            connection: Connection = await attempts(_login, route, options, where, tunnel)
            return connection
    except TimeoutError:
        raise Unreachable(f"{where}: no login within {limit:g} s", CHECK_NETWORK) from None


async def _login(route: Route, options: Options, where: str, tunnel: Connection | None) -> Connection:
    known = hostkeys.trusted(route.known_hosts_files)
    name = options.host_key_alias or options.host
    gatekeeper = hostkeys.Gatekeeper()
    with mapped(where):
        try:
            return await asyncssh.connect(
                options.orig_host,
                options=options,
                config=None,  # read already
                tunnel=tunnel,
                known_hosts=known,
                server_host_key_algs=hostkeys.kinds_to_ask_for(known, name, options),
                client_factory=lambda: gatekeeper,
            )
        except asyncssh.HostKeyNotVerifiable:
            keys = hostkeys.of_host(known, name, options.port)
            raise hostkeys.refusal(where, route.node.name, keys, gatekeeper.refused) from None


async def _options(node: Node, place: Place, where: str) -> Options:
    """asyncssh's options: what the entry says over what the SSH configuration says."""
    given: dict[str, Any] = {
        "host": place.address,
        "config": _config_files(node),
        "connect_timeout": None,  # ours covers jumps and retries too
        "login_timeout": float(node.connect_timeout),
        "keepalive_interval": float(node.keepalive),
        "keepalive_count_max": 3,
        "ignore_encrypted": True,  # such a key may be in the agent; there is nobody to ask for its passphrase
    }
    if place.port is not None:
        given["port"] = place.port
    if place.user is not None:
        given["username"] = place.user
    if place.identity_file is not None:
        given["client_keys"] = [str(_existing_key(node, place.identity_file))]
    with mapped(where):
        options: Options = await Options.construct(**given)
        return options


def _config_files(node: Node) -> list[str]:
    path = Path(node.ssh_config).expanduser()
    return [str(path)] if path.is_file() else []


def _existing_key(node: Node, identity_file: str) -> Path:
    path = Path(identity_file).expanduser()
    if not path.is_file():
        raise UsageError(f"node {node.name}: there is no key {path}", "Mend identity_file: in the inventory.")
    return path


def _hop(text: str, node: Node) -> Place:
    """`[user@]host[:port]`. It may use the node's key, since the inventory has no other place to name one."""
    found = HOP.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"node {node.name}: proxy_jump {text!r} is not [user@]host[:port]", "Mend the inventory.")
    port = found["port"]
    return Place(found["host"].strip("[]"), int(port) if port else None, found["user"], node.identity_file)
