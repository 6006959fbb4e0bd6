"""Counts the diagnoses that healthy nets get: random nets of ten families, quantised as a default build does it.

python tests/diagnosis/run_healthy.py --count 50
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from families import FAMILIES, random_net
from sick import diagnosed, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    wrong = 0
    for seed in range(asked.first, asked.first + asked.count):
        net, data = random_net(seed)
        with tempfile.TemporaryDirectory() as folder:
            found = diagnosed(net.model(data), data, Path(folder), quantise=ours)
        wrong += not found.healthy
        causes = "; ".join(f"{each.cause} at {each.tensor}: {each.evidence}" for each in found.causes)
        state = "healthy" if found.healthy else "SICK"
        family = FAMILIES[seed % len(FAMILIES)].__name__
        print(f"{seed:4} {family:12} {found.sqnr_db:6.1f} dB {state} {causes} {'; '.join(found.notes)}", flush=True)
    print(f"{asked.count} healthy nets, {wrong} with a diagnosis")


if __name__ == "__main__":
    main()
