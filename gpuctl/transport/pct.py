"""A Proxmox container as a node: the same protocol around any transport to its host; every argv gets a prefix."""

from __future__ import annotations

from collections.abc import Sequence

from gpuctl.transport.base import Process, Terminal, Transport, checked
from gpuctl.transport.plain import as_plain


class PctTransport:
    def __init__(self, inner: Transport, vmid: int) -> None:
        self._inner, self._vmid = inner, vmid
        self.where = f"container {vmid} on {inner.where}"

    async def start(self, argv: Sequence[str], *, terminal: Terminal | None = None) -> Process:
        prefix = ["pct", "exec", str(self._vmid), "--keep-env", "0", "--"]
        return await self._inner.start([*prefix, *as_plain(checked(argv))], terminal=terminal)

    async def aclose(self) -> None:
        await self._inner.aclose()
