"""`gpuctl trust`: accepts a node's host key, after a look at its fingerprint."""

from __future__ import annotations

from dataclasses import asdict

import click

from gpuctl.cli import completion, options, output
from gpuctl.cli.failures import Interrupted
from gpuctl.errors import RefusedForSafety
from gpuctl.spec.inventory import Node
from gpuctl.transport.trust import HostKeys, host_keys, trust

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
    """Show NODE's host keys and write them into its known_hosts file; on a terminal after asking."""
    found = options.read_inventory().node(node)
    return options.performed(_trust(found, fingerprint, yes=yes, as_json=as_json))


async def _trust(node: Node, fingerprints: tuple[str, ...], *, yes: bool, as_json: bool) -> int:
    with output.doing(f"asking {node.name} for its host keys"):
        shown = await host_keys(node)
    _check(shown, fingerprints)
    if not as_json:
        for key in shown.keys:
            output.line(f"{shown.host} {key.kind} {key.fingerprint}")
        output.note(f"{node.name}: {_STANDING[shown.standing]}")
    if shown.standing != "known":
        if output.on_terminal() and not yes and not output.ask(f"trust these, in {shown.file}?"):
            output.note("nothing was done")
            raise Interrupted
        trust(shown)
        output.note(f"written to {shown.file}")
    if as_json:
        keys = [asdict(key) for key in shown.keys]
        output.document(
            {"node": node.name, "host": shown.host, "before": shown.standing, "file": str(shown.file), "keys": keys}
        )
    return 0


def _check(shown: HostKeys, fingerprints: tuple[str, ...]) -> None:
    have = [key.fingerprint for key in shown.keys]
    missing = [fingerprint for fingerprint in fingerprints if fingerprint not in have]
    if missing:
        raise RefusedForSafety(
            f"{shown.node}: no key there has the fingerprint {missing[0]}; it shows {', '.join(have)}",
            "this is not the machine that you expect, or the fingerprint is of a key that it no longer uses",
        )
