"""Same file, same verdict: what the other runtimes of a format say of a file that one of them runs.

TFLite-Micro divides by zero and adds tensors of shapes that do not fit without a word; LiteRT refuses both.
"""

from __future__ import annotations

import re

from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, DeviceError, Finding, IntegrityError, Unsupported
from anynpu.measure.remembered import Memory
from anynpu.measure.samples import SampleSet
from anynpu.runtime.base import Session, run_real, sessions_for
from anynpu.tensors import by_name

ASKED = ("tflite",)
"""Formats that have several runtimes, none of which is a device."""
MACS_BUDGET, MACS_LIMIT = 300_000_000, 6_000_000_000
MIN_SAMPLES = 5
"""How many samples others run: as many as the budget has room for, at least five within the limit, and at least one."""
REASONS = (
    (r"div\.cc\S* .*zero_point|[Dd]ivision by", "a divisor is zero once it is quantised"),
    (r"only defined for", "a value is outside what the operator is defined for"),
    (r"zero_point|scale", "a scale or a zero point is one that the operator is not defined for"),
    (r"broadcast|num_input_elements", "shapes do not fit together"),
    (r"out of bounds", "an index is beyond its table"),
)
"""What LiteRT says of a model that is wrong, and not of an operator or a type that it lacks."""
HINT = "clip the tensor in the model to what the operator is defined for, or keep it apart from larger values"


def refusal(kind: type[Session], error: AnyNpuError) -> Unsupported | None:
    """Returns the error for every chip that takes this file, if a runtime refuses the model itself."""
    words = error.message
    if not words.startswith(("LiteRT refuses", "LiteRT failed")):  # of what our own reader finds, it has judged itself
        return None
    reason = next((meaning for pattern, meaning in REASONS if re.search(pattern, words)), None)
    if reason is None:
        return None
    return Unsupported(f"the model is refused by {kind.what}: {reason}", [Finding("runs", words)], HINT)


def second_opinions(
    kind: type[Session], subject: Artifact, samples: SampleSet, truth: Artifact, memory: Memory
) -> list[str]:
    """Returns notes about runtimes that fail on a file which `kind` runs; one that refuses the model raises. A runtime
    that `memory` has answers of is not run on these again."""
    if subject.manifest.format not in ASKED:
        return []
    macs = max((truth.manifest.estimates.macs if truth.manifest.estimates else None) or 1, 1)
    count = max(MACS_BUDGET // macs, min(MIN_SAMPLES, MACS_LIMIT // macs), 1)
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    notes = []
    for other in sessions_for(subject.manifest.format):
        if other is not kind and not other.missing():
            try:
                session = memory.of(other.name, other(subject))
                for sample in samples.first(count):
                    run_real(session, sample, like)
            except (IntegrityError, DeviceError) as error:
                if wrong := refusal(other, error):
                    raise wrong from error
                if isinstance(error, DeviceError):  # one that does not open it lacks an operator
                    notes.append(f"{other.what} does not run this model: {error.message}")
    return notes
