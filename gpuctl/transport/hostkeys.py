"""Which host keys are trusted. They are checked always, whatever an SSH configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
from asyncssh.public_key import get_default_public_key_algs

from gpuctl.errors import HostKeyChanged, HostKeyUnknown, Unreachable, UsageError

if TYPE_CHECKING:
    from gpuctl.spec.inventory import Node

USUAL = "~/.ssh/known_hosts"
SYSTEM_WIDE = "/etc/ssh/ssh_known_hosts"


def files(node: Node, config: asyncssh.config.SSHConfig) -> list[Path]:
    """The inventory's file; where that is the usual one, those that the SSH configuration names, and the machine's."""
    if node.known_hosts != USUAL:
        return [Path(node.known_hosts).expanduser()]
    named = config.get("UserKnownHostsFile", [USUAL]) or [USUAL]  # `none` would be no check at all
    system_wide = config.get("GlobalKnownHostsFile", [SYSTEM_WIDE])
    return [Path(each).expanduser() for each in [*_strings(named), *_strings(system_wide)]]


def trusted(paths: list[Path]) -> asyncssh.SSHKnownHosts:
    """What those of the files that exist say."""
    known = asyncssh.import_known_hosts("")
    for path in paths:
        try:
            known.load(path.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {error}", "Mend or remove that line of it.") from None
    return known


class Gatekeeper(asyncssh.SSHClient):
    """Refuses a host key that is not trusted, and keeps it: an error without its fingerprint would not help."""

    def __init__(self) -> None:
        self.refused: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Asked only about a key that no known_hosts file has."""
        self.refused = key
        return False


def of_host(known: asyncssh.SSHKnownHosts, host: str, port: int) -> list[asyncssh.SSHKey]:
    """The keys that it is known by."""
    return list(known.match(host, "", None if port == asyncssh.DEFAULT_PORT else port)[0])


def kinds_to_ask_for(known: asyncssh.SSHKnownHosts, host: str, options: asyncssh.SSHClientConnectionOptions) -> Any:
    """The kinds of the keys that it is known by, then all others, as OpenSSH does; () leaves it to the library.

    The library asks for the known kinds alone. A host that was set up anew with another kind would then only hang up,
    and nobody would learn that its key has changed.
    """
    keys, authorities = known.match(host, "", None if options.port == asyncssh.DEFAULT_PORT else options.port)[:2]
    if not keys or authorities or options.config.get("HostKeyAlgorithms"):
        return ()
    kinds = [kind for key in keys for kind in key.sig_algorithms] + get_default_public_key_algs()
    return [kind.decode("ascii") for kind in dict.fromkeys(kinds)]


def refusal(where: str, node: str, keys: list[asyncssh.SSHKey], seen: asyncssh.SSHKey | None) -> Unreachable:
    """The error for a host whose key was refused: known by other `keys`, or not at all."""
    shown = f" ({seen.get_algorithm()} {seen.get_fingerprint()})" if seen is not None else ""
    if keys:
        return HostKeyChanged(
            f"{where}: the host key has changed{shown}; known is {keys[0].get_fingerprint()}",
            "Somebody may be in between. If the machine was set up anew, compare the fingerprint there, "
            f"then run: gpuctl trust {node}",
        )
    return HostKeyUnknown(
        f"{where}: its host key is not known{shown}",
        f"Compare the fingerprint with the machine's own, then run: gpuctl trust {node}",
    )


def _strings(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value] if isinstance(value, list) else []
