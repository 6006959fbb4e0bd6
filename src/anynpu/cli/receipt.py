"""The receipt of a run in words: how much of it the NPU did, and what it did not do and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from anynpu.records.build import Receipt


def lines(receipt: Receipt) -> Iterator[str]:
    """Yields one line for the whole and one for each kind of operator and reason that the CPU was left with."""
    share = f"{receipt.operator_share:.1%}{receipt.said_by}"
    yield f"receipt: {receipt.on_npu} of {receipt.operators} operators on the {receipt.npu}, {share}"
    reasons = Counter((op.kind, op.reason) for op in receipt.elsewhere)
    for (kind, reason), count in reasons.most_common():
        yield f"  on the CPU: {count} {kind}: {reason}"
