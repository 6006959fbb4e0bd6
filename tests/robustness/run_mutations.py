"""Damaged files of every kind that anynpu reads: the cases FROM to TO of them.

    PYTHONPATH=tests/kit python tests/robustness/run_mutations.py FOLDER FROM TO

Prints every case that fails with the end of what it said, and at last, as JSON, the exit statuses by kind of file.
FOLDER is made; a case of a number is always the same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mutation_cases import Case, Outcome, preload, run_all
from mutation_seeds import seeds

from anynpu.cli.main import main as command

SLOW_S = 30


def tell(case: Case, outcome: Outcome, complaints: list[str]) -> None:
    what = f"case {case.number}: {case.seed.kind}: {case.seed.file}: anynpu {' '.join(case.command)}"
    if complaints:
        print(f"{what}: {'; '.join(complaints)}\n{outcome.err[-600:].decode('utf-8', 'replace')}", flush=True)
    if outcome.seconds > SLOW_S:
        print(f"slow: {what}: {outcome.seconds:.1f} s", flush=True)


def main(folder: Path, begin: int, end: int) -> int:
    for part in ("seeds", "room"):
        (folder / part).mkdir(parents=True)
    os.environ["ANYNPU_CACHE_DIR"] = str(folder / "cache")
    preload()
    figures = run_all(range(begin, end), seeds(folder / "seeds", command), folder / "room", tell)
    statuses = {kind: dict(sorted(counts.items())) for kind, counts in sorted(figures.statuses.items())}
    print(json.dumps({"statuses": statuses, "failures": figures.failures, "sentences": len(figures.sentences)}))
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
