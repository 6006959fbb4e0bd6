"""What neutron-converter prints of a conversion, as far as it is known: version 2.0 and later.

Conversion statistics:
  Number of operators after import    = 293
  Number of operators after optimize  = 338
    Number of operators converted     = 303
    Number of operators NOT converted = 35
  Number of operators after extract   = 36
    Number of Neutron graphs          = 1
...
Overall statistics for graph "main":
  Memory:
    Total data    = 16,512 (bytes) (Inputs + Outputs + Intermediate Variable Tensors)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COUNTS = {
    "imported": "Number of operators after import",
    "optimized": "Number of operators after optimize",
    "converted": "Number of operators converted",
    "left": "Number of operators NOT converted",
    "graphs": "Number of Neutron graphs",
}
BYTES = {"data_bytes": "Total data", "weight_bytes": "Total weights"}
MAIN = 'Overall statistics for graph "main"'


@dataclass(frozen=True)
class Statistics:
    """The figures of one conversion; None for a line that was not there."""

    imported: int | None = None
    optimized: int | None = None
    converted: int | None = None
    left: int | None = None
    graphs: int | None = None
    data_bytes: int | None = None
    weight_bytes: int | None = None


def read_statistics(output: str) -> Statistics:
    """Returns the figures in what neutron-converter printed."""
    counts = {field: _number(words, output) for field, words in COUNTS.items()}
    memory = output.partition(MAIN)[2]
    return Statistics(**counts, **{field: _number(words, memory) for field, words in BYTES.items()})


def _number(words: str, text: str) -> int | None:
    match = re.search(rf"^\s*{re.escape(words)}\s*[=:]\s*(\d[\d,]*)", text, re.MULTILINE)
    return int(match[1].replace(",", "")) if match else None
