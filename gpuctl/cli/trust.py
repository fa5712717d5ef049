"""`gpuctl trust`: accepts a node's host key, after a look at its fingerprint."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import click

from gpuctl.cli import completion, options, output
from gpuctl.cli.failures import Interrupted
from gpuctl.errors import RefusedForSafety, UsageError
from gpuctl.spec.inventory import Node
from gpuctl.transport.trust import HostKeys, host_keys, trust

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]+")
_STANDING = {
    "known": "its keys are trusted already",
    "unknown": "no key of it is known yet",
    "changed": "OTHER keys are known for it: the machine was set up anew, or somebody is in between",
}


@click.command(
    "trust", epilog="Example: gpuctl trust gpu1 --fingerprint SHA256:… (as the machine's own ssh-keygen -lf prints it)"
)
@click.argument("node", shell_complete=completion.nodes)
@click.option("--fingerprint", metavar="SHA256:…", multiple=True, help="Accept only if a key has this fingerprint.")
@options.yes
@options.as_json
@options.inventory
def command(node: str, fingerprint: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Show NODE's host keys and write them into its known_hosts file; on a terminal after asking.

    A fingerprint may be given as ssh-keygen -lf prints it, with all that stands around it; then only the keys that it
    confirms are written. In place of other known keys, nothing is written without a person's yes, -y or a fingerprint.
    """
    found = options.read_inventory().node(node)
    return options.performed(_trust(found, fingerprint, yes=yes, as_json=as_json))


async def _trust(node: Node, fingerprints: tuple[str, ...], *, yes: bool, as_json: bool) -> int:
    with output.doing(f"asking {node.name} for its host keys"):
        shown = await host_keys(node)
    if fingerprints:
        shown = confirmed(shown, fingerprints)
    if not as_json:
        for key in shown.keys:
            output.line(f"{shown.host} {key.kind} {key.fingerprint}")
        output.note(f"{node.name}: {_STANDING[shown.standing]}")
    if shown.standing != "known":
        _agree(shown, yes=yes, by_fingerprint=bool(fingerprints))
        trust(shown)
        output.note(f"written to {shown.file}")
    if as_json:
        keys = [asdict(key) for key in shown.keys]
        output.document(
            {"node": node.name, "host": shown.host, "before": shown.standing, "file": str(shown.file), "keys": keys}
        )
    return 0


def _agree(shown: HostKeys, *, yes: bool, by_fingerprint: bool) -> None:
    """A person's yes, where there is a person; other keys than the known ones need more than nobody's word."""
    if yes:
        return
    if output.on_terminal():
        if not output.ask(f"trust these, in {shown.file}?"):
            output.note("nothing was done")
            raise Interrupted
    elif shown.standing == "changed" and not by_fingerprint:
        raise RefusedForSafety(
            f"{shown.node}: {_STANDING['changed']}; nothing was written",
            "compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the machine itself, "
            f"then: gpuctl trust {shown.node} --fingerprint SHA256:…",
        )


def confirmed(shown: HostKeys, given: tuple[str, ...]) -> HostKeys:
    """With the keys that the fingerprints name, and no other: who is in between may show a key of his own beside them.
    Raises `RefusedForSafety` where one names none."""
    have = {key.fingerprint for key in shown.keys}
    wanted: list[str] = []
    for text in given:
        found = _FINGERPRINT.findall(text)
        if not found:
            raise UsageError(f"--fingerprint {text!r}: no fingerprint", "it is a word that begins with SHA256:")
        wanted += found
    missing = [fingerprint for fingerprint in wanted if fingerprint not in have]
    if missing:
        raise RefusedForSafety(
            f"{shown.node}: no key there has the fingerprint {missing[0]}; it shows {', '.join(sorted(have))}",
            "this is not the machine that you expect, or the fingerprint is of a key that it no longer uses",
        )
    return replace(shown, keys=[key for key in shown.keys if key.fingerprint in wanted])
