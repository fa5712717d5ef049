"""What asyncssh and the operating system raise, as `gpuctl.errors` errors: here, and nowhere else.

A test fails when asyncssh grows an exception that none of these names.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import asyncssh

from gpuctl.errors import AuthRefused, ConnectionLost, GpuctlError, HostKeyUnknown, Unreachable, UsageError

CHECK_NETWORK = "Is the machine up, and the address in the inventory right? `gpuctl doctor` looks step by step."

# Most specific first.
_MAPPED: tuple[tuple[tuple[type[Exception], ...], type[GpuctlError], str, str], ...] = (
    (
        (asyncssh.PermissionDenied,),
        AuthRefused,
        "no login: {error}",
        "Check user: and identity_file: in the inventory, or load the key into ssh-agent.",
    ),
    (
        (asyncssh.PasswordChangeRequired,),
        AuthRefused,
        "it asks for a new password first",
        "Log in there by hand and set one.",
    ),
    ((asyncssh.IllegalUserName,), UsageError, "the user name can't be sent: {error}", "Mend user: in the inventory."),
    (
        (asyncssh.HostKeyNotVerifiable,),
        HostKeyUnknown,
        "its host key can't be verified: {error}",
        "Run: gpuctl trust NODE",
    ),
    ((asyncssh.ConfigParseError,), UsageError, "the SSH configuration can't be read: {error}", "Mend ~/.ssh/config."),
    (
        (asyncssh.KeyEncryptionError, asyncssh.KeyImportError, asyncssh.KeyExportError, asyncssh.KeyGenerationError),
        AuthRefused,
        "the key can't be used: {error}",
        "A key with a passphrase belongs in ssh-agent: run ssh-add.",
    ),
    (
        (asyncssh.ChannelOpenError, asyncssh.ChannelListenError),
        Unreachable,
        "it refuses another channel: {error}",
        "Its sshd may allow none (ForceCommand, MaxSessions).",
    ),
    (
        (asyncssh.KeyExchangeFailed, asyncssh.ProtocolNotSupported, asyncssh.ServiceNotAvailable),
        Unreachable,
        "no common ground with its SSH server: {error}",
        "Its sshd may be too old or too strict for this client.",
    ),
    (
        (asyncssh.ConnectionLost, asyncssh.DisconnectError, ConnectionResetError, BrokenPipeError),
        ConnectionLost,
        "the connection was lost: {error}",
        "What runs there goes on; ask again.",
    ),
    (
        (ConnectionRefusedError,),
        Unreachable,
        "the connection was refused",
        "No SSH server listens at that address and port.",
    ),
    ((socket.gaierror,), Unreachable, "its address is not known: {error}", "Check address: in the inventory, and DNS."),
    ((TimeoutError,), Unreachable, "no answer in time", CHECK_NETWORK),
    ((asyncssh.Error, OSError), Unreachable, "{error}", CHECK_NETWORK),
)


@contextmanager
def mapped(where: str) -> Iterator[None]:
    """Around every call of the library."""
    try:
        yield
    except GpuctlError:
        raise
    except Exception as error:
        found = in_our_words(error, where)
        if found is None:
            raise
        raise found from error


def in_our_words(error: Exception, where: str) -> GpuctlError | None:
    """None where it is not the library's: a fault of ours, which must not look like one of the node."""
    for kinds, ours, what, hint in _MAPPED:
        if isinstance(error, kinds):
            return ours(f"{where}: {what.format(error=str(error) or type(error).__name__)}", hint)
    return None
