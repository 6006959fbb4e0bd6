"""Which layer each operation of a command stream comes from, as Vela's debug database has it."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from anynpu.targets.flatbuffer import TfliteOperator

FILE = "stream.csv"
COLUMNS = ("stream", "word", "operator", "kind", "name", "reads")
GRAPH_INPUT = -1
MOVERS = frozenset(
    (
        *("CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "MIRROR_PAD", "PACK", "PAD", "PADV2", "QUANTIZE"),
        *("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "RESHAPE", "REVERSE_V2", "SLICE", "SPACE_TO_DEPTH", "SPLIT"),
        *("SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
    )
)
"""Operators that Vela folds into one neighbour and copies for another: their readers may find either."""
SAME_BYTES = frozenset(("EXPAND_DIMS", "RESHAPE", "SQUEEZE"))
"""Operators that give their input's bytes another shape: of several that read one tensor, Vela may copy one for all."""


def write_origins(database: Path, before: Sequence[TfliteOperator], out: Path) -> None:
    """Writes one row an operation: its stream, its word, the operator it comes from, and whose results that reads."""
    text = database.read_text("utf-8")
    tables: dict[str, list[dict[str, str]]] = {}
    for name in ("queue", "optimised", "source"):
        match = re.search(rf'<table name="{name}">\s*<!\[CDATA\[\n(.*?)\]\]>', text, re.DOTALL)
        tables[name] = list(csv.DictReader(match.group(1).splitlines())) if match else []
    sources = {row["id"]: int(row["ext_key"]) for row in tables["source"]}
    optimised = {row["id"]: sources.get(row["source_id"]) for row in tables["optimised"]}
    streams = list(dict.fromkeys(row["cmdstream_id"] for row in tables["queue"]))
    compiled = {optimised.get(row["optimised_id"]) for row in tables["queue"]}
    reads = reads_of(before, frozenset(index for index in compiled if index is not None))
    with (out / FILE).open("w", encoding="utf-8", newline="") as sink:
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in tables["queue"]:
            index = optimised.get(row["optimised_id"])
            if index is not None and 0 <= index < len(before):
                op = before[index]
                number = streams.index(row["cmdstream_id"])
                sources_read = " ".join(map(str, sorted(reads[index])))
                writer.writerow([number, int(row["offset"]) // 4, index, op.kind, op.name, sources_read])


def reads_of(graph: Sequence[TfliteOperator], compiled: frozenset[int]) -> list[frozenset[int]]:
    """Returns, for each operator, those of the compiled ones whose results it reads: an operator that the stream has no
    operation of is looked through, as are movers; what the CPU or the caller writes counts as an input of the graph.
    """
    origins: dict[str, str] = {}
    copies: dict[str, set[int]] = defaultdict(set)
    for number, op in enumerate(graph):
        if op.kind in SAME_BYTES and op.inputs[0] is not None:
            origin = origins.get(op.inputs[0].name, op.inputs[0].name)
            origins |= {t.name: origin for t in op.outputs if t is not None}
            copies[origin] |= {number} & compiled
    sources: dict[str, frozenset[int]] = {}
    reads = []
    for number, op in enumerate(graph):
        names = [t.name for t in op.inputs if t is not None and not t.constant]
        written = [sources.get(name, frozenset({GRAPH_INPUT})) for name in names]
        reads.append(frozenset().union(*written, *(copies[origins.get(name, name)] for name in names)))
        result = frozenset({number}) if number in compiled else reads[-1] | {GRAPH_INPUT}
        if op.kind in MOVERS:
            result |= reads[-1]
        sources |= {t.name: result for t in op.outputs if t is not None}
    return reads
