"""Finds models that ignore their input or overflow: they compile, run and look healthy in every other check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
import onnx
from onnx import ModelProto

from anynpu.errors import ConfigError, Finding
from anynpu.graph.fold import fold_constants, names_read
from anynpu.graph.run import Session, random_feeds
from anynpu.graph.shapes import dtype_of, infer, inputs_of, shape_of

MIN_INPUTS = 4
MAX_INPUTS = 8
# Float32 rounds at 1.2e-7; sums in another order reach some times that.
NOISE = 1e-6
# One scale could sit where every activation saturates, so random inputs span six decades.
_SCALES = (1.0, 0.01, 100.0, 0.1, 10.0, 1.0, 0.001, 1000.0)

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], Sequence[np.ndarray]]


def input_dependence(model: ModelProto, samples: Mapping[str, np.ndarray] | None = None) -> tuple[Finding, ...]:
    """Returns a finding for each output that does not depend on the input or is not finite.

    `samples` maps each input to arrays stacked along a first axis; without at least four that differ, seeded random
    inputs are used.
    """
    feeds: list[Feeds] = []
    inputs = {value.name: value for value in inputs_of(model)}
    if samples and set(samples) != set(inputs):
        raise ConfigError(
            f"samples are given for {', '.join(sorted(samples))}, the model takes {', '.join(sorted(inputs))}"
        )
    if samples:
        count = min(len(array) for array in samples.values())
        feeds = differing(
            {name: _one(value, samples[name][place]) for name, value in inputs.items()} for place in range(count)
        )
    random = len(feeds) < MIN_INPUTS
    if random:
        feeds = differing(scaled(random_feeds(model, seed) for seed in range(len(_SCALES))))
    names = [value.name for value in model.graph.output]
    graph = fold_constants(infer(model, strict=False)).graph
    reached = {*inputs}
    for node in graph.node:
        if names_read(node) & reached:
            reached |= set(node.output)
    unreachable = {value.name for value in graph.output} - reached
    return judge_outputs(names, unreachable, feeds, Session(model).run, random)


def judge_outputs(
    names: Sequence[str], unreachable: Set[str], feeds: Sequence[Feeds], run: Run, random: bool
) -> tuple[Finding, ...]:
    """Returns a finding for each output that no input reaches, that stays the same for all feeds, or is not finite."""
    findings = [
        Finding("degenerate-output", "no input reaches this output", name) for name in names if name in unreachable
    ]
    results = [run(feed) for feed in feeds]
    for place, name in enumerate(names):
        outputs = [result[place] for result in results]
        if name not in unreachable and len(feeds) >= MIN_INPUTS and _all_equal(outputs):
            kind = "random inputs" if random else "samples"
            text = f"gives the same values for {len(feeds)} differing {kind}"
            findings.append(Finding("degenerate-output", text, name))
        # Inputs of extreme scale overflow healthy networks; only the plain ones tell.
        judged = outputs[:1] if random else outputs
        if bad := sum(not np.isfinite(output).all() for output in judged if output.dtype.kind == "f"):
            text = f"holds NaN or Inf for {bad} of {len(judged)} inputs"
            findings.append(Finding("non-finite-output", text, name))
    return tuple(findings)


def _one(value: onnx.ValueInfoProto, sample: np.ndarray) -> np.ndarray:
    shape = shape_of(value)
    for candidate in (np.asarray(sample), np.asarray(sample)[None]):
        fits = candidate.ndim == len(shape)
        if fits and all(isinstance(w, str) or w == g for w, g in zip(shape, candidate.shape, strict=True)):
            return candidate.astype(dtype_of(value))
    wanted = ", ".join(map(str, shape))
    raise ConfigError(f"a sample of '{value.name}' has shape {list(np.shape(sample))}, the model takes [{wanted}]")


def scaled(feeds: Iterable[Feeds]) -> Iterator[Feeds]:
    """Yields random inputs over six decades: normal numbers times a scale of their own."""
    for scale, feed in zip(_SCALES, feeds, strict=False):
        yield {
            name: (array * scale).astype(array.dtype) if array.dtype.kind == "f" else array
            for name, array in feed.items()
        }


def differing(feeds: Iterator[Feeds]) -> list[Feeds]:
    """Returns the first inputs that differ from each other."""
    kept: list[Feeds] = []
    for feed in feeds:
        if not any(all(np.array_equal(feed[name], other[name]) for name in feed) for other in kept):
            kept.append(feed)
        if len(kept) == MAX_INPUTS:
            break
    return kept


def _all_equal(outputs: list[np.ndarray]) -> bool:
    first = outputs[0]
    if not first.size or any(other.shape != first.shape for other in outputs):
        return False
    # A class number or a flag may well be the same for a few inputs; numbers on a scale may not.
    if first.dtype.kind == "b" or (first.dtype.kind in "iu" and first.dtype.itemsize >= 4):
        return False
    stack = np.stack([output.astype(np.float64) for output in outputs])
    if not np.isfinite(stack).all():
        return bool(all(np.array_equal(stack[0], other, equal_nan=True) for other in stack[1:]))
    spread = float(np.abs(stack - stack[0]).max())
    return spread <= NOISE * float(np.abs(stack).max())
