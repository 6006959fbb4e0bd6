"""anynpu show FOLDER --stream: the NPU's command stream, operation by operation."""

from __future__ import annotations

from pathlib import Path

import click

from anynpu.artifact import Artifact
from anynpu.cli.table import print_record, print_table
from anynpu.errors import ConfigError
from anynpu.runtime.ethos_u.listing import listing


def show_stream(folder: Path, format: str) -> int:
    """Prints the commands of the NPU."""
    artifact = Artifact.open(folder)
    if artifact.manifest.format != "tflite-vela":
        raise ConfigError(f"{folder}: --stream is for Ethos-U artifacts; this is {artifact.manifest.format}")
    record = listing(artifact)
    if format == "json":
        print_record(record)
        return 0
    for number, stream in enumerate(record["streams"]):
        operations = stream["operations"]
        moved = sum(row["bytes"] for row in operations if row["kind"] == "dma")
        click.echo(f"stream {number}: {stream['npu']}, {len(operations)} operations, {moved:,} bytes moved by DMA")
        print_table(
            [
                {
                    "": str(row["operation"]),
                    "kind": " ".join(filter(None, (row["kind"], row.get("mode", ""), row.get("traversal", "")))),
                    "output": "x".join(map(str, row.get("ofm", ()))),
                    "block": "x".join(map(str, row.get("block", ()))),
                    "from": " and ".join(filter(None, (row["from"], row.get("from 2", "")))),
                    "to": row["to"],
                    "bytes": f"{row['bytes']:,}" if row["bytes"] else "",
                    "layer": row["layer"],
                }
                for row in operations
            ]
        )
    audit = record["audit"]
    if audit["refused"]:
        click.echo(f"not executed: {audit['refused']}")
        return 0
    for violation in audit["violations"]:
        click.echo(f"{violation['rule']}: {violation['message']}")
    if not audit["violations"]:
        click.echo("memory: no read before a write, no live tensor overwritten, transfers and tables in order")
    for used in audit["used"]:
        figure = f", {used['figure']:,} in the manifest" if used["figure"] is not None else ""
        click.echo(f"memory: {used['memory']}: {used['bytes']:,} bytes touched, up to byte {used['end']:,}{figure}")
    return 0
