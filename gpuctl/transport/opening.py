"""Which transport a node's inventory entry asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuctl.errors import UsageError
from gpuctl.transport.base import Transport
from gpuctl.transport.local import LocalTransport
from gpuctl.transport.pct import PctTransport

if TYPE_CHECKING:
    from gpuctl.spec.inventory import Node


def open_transport(node: Node) -> Transport:
    """Opens no connection yet: that is done by the first `start`. The caller closes it."""
    inner = _to_host(node)
    return inner if node.container is None else PctTransport(inner, node.container)


def _to_host(node: Node) -> Transport:
    if node.transport == "local":
        return LocalTransport(node.name)
    if node.transport == "asyncssh":
        # Imported here: asyncssh takes longer to import than a local `ps` takes altogether.
        from gpuctl.transport.ssh import SshTransport

        return SshTransport(node)
    raise UsageError(
        f"node {node.name}: transport {node.transport} does not exist yet",
        "Use asyncssh, the default, or local; they read the same keys and ~/.ssh/config.",
    )
