"""`gpuctl schema`: JSON Schemas, for editors that complete and check YAML."""

from __future__ import annotations

from typing import Literal

import click

from gpuctl.cli import options, output


@click.command(
    "schema",
    epilog="Example: gpuctl schema job > job.schema.json; then begin a job file with "
    "# yaml-language-server: $schema=job.schema.json",
)
@click.argument("kind", type=click.Choice(["job", "inventory"]))
@options.as_json
def command(kind: Literal["job", "inventory"], as_json: bool) -> int:
    """Print the JSON Schema of job files or of inventories."""
    from gpuctl.spec.schema import schema  # here: it reads every model

    output.document(schema(kind))
    return 0
