"""What a build keeps of the way the float output varies over the samples: of the whole output and of each part of it.

An output of 293 K that moves by half a kelvin has a splendid SQNR when it stands still. Here the mean of every element
over the samples is taken away first, so that only what tells one sample from another counts as signal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from anynpu.measure.decibels import ratio_db, ratios_db
from anynpu.measure.parts import (
    FEW_ELEMENTS,
    FLOAT_NOISE,
    LEVELS,
    MARGIN_STEPS,
    MAX_PARTS,
    NAMED,
    Elements,
    Parts,
    families_of,
)
from anynpu.tensors import Array

ENOUGH_SAMPLES = 5
"""With fewer samples, how an output varies is not known well enough to judge a build by it."""
FLOOR_DB = 6.0
"""Two distinct values for a signal that has many reach at most this."""
BURIED_DB = -10.0
"""Below this the error is so large that nothing of the variation can be seen, whatever it comes from."""
WRONG_DB = 1.0
"""A part with less has errors as large as its variation: it is noise, another part or its own mirror image."""
QUIET = MARGIN_STEPS / LEVELS
"""Probabilities that stay nearer to 0 or 1 than this detect nothing."""
MAX_LOOKED_AT = 512
MAX_SORTED = 1_000_000
SENTINEL = 1000.0
"""One value that exceeds all others by this factor stands for "none": the -1e9 of a mask."""
UNEVEN = 100.0
KEPT_DB = 20.0
"""What reaches this in the build (16 bits, a scale a channel) is not lost to a shared scale."""
SHADE = 2.0
"""Errors of many small parts shade off; one that exceeds all lesser ones by this factor is of another kind."""
COMMON = 0.9
CUT_SHARE = 0.02


@dataclass(frozen=True)
class Variation:
    """How one output varies in the float model over the samples, and what of that a build keeps.

    `sqnr_centred_db` is the ratio of the variance over the samples to the mean squared error, over all elements that
    vary; None where none does, for one sample and for integers. `unresolved` says why a build with a low ratio cannot
    follow at all: it has too few values for that, or its error buries everything. `lost` names the parts of which that
    is true; `uneven` says which parts are too different in range for one scale, `strays` which samples are wrong where
    the others are right.
    """

    sqnr_centred_db: float | None = None
    unresolved: str = ""
    lost: tuple[str, ...] = ()
    uneven: str = ""
    strays: str = ""


def compare_variation(name: str, reference: Array, candidate: Array) -> Variation:
    """Returns what `candidate` keeps of the variation of `reference`; the first axis of both counts samples."""
    if reference.ndim == 0 or len(reference) < 2:
        return Variation()
    if reference.dtype.kind in "iub":
        return Variation(lost=_lost_numbers(name, reference, candidate))
    reference, candidate = _without_sentinels(reference, candidate)
    elements = Elements(reference, candidate)
    varying = elements.varying
    # A few numbers that are all near 0 may as well be an error or a distance, small and alive.
    if not varying.any() or (is_quiet(reference) and not (elements.few and reference.max() < 0.5)):
        return Variation()
    centred = ratio_db(float(elements.variance[varying].sum()), float(elements.error[varying].sum()))
    if len(reference) < ENOUGH_SAMPLES:
        return Variation(centred)
    std = float(np.sqrt(elements.variance[varying].mean()))
    unresolved = ""
    if centred < FLOOR_DB:
        unresolved = _offset(elements) if elements.few else ""
        unresolved = unresolved or _unresolved(
            elements.candidate[:, varying], std, centred, elements.by_step, elements.standing
        )
    families = tuple(families_of(elements))
    # The parts that the build loses, along the first axes that show any.
    shown = ((parts, _lost(parts, elements, centred)) for parts in families)
    lost = next((tuple(_sentences(name, parts, gone, elements)) for parts, gone in shown if gone.any()), ())
    uneven = _uneven_parts(name, elements, families)
    return Variation(centred, unresolved, lost, uneven, _strays(name, elements))


def _without_sentinels(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Returns both without the one huge value that a mask writes: next to it nothing else would count as varying."""
    for sentinel in {float(reference.min()), float(reference.max())}:
        if abs(sentinel) < SENTINEL:
            continue
        masked = reference == sentinel
        rest = reference[~masked]
        if rest.size and np.count_nonzero(masked) > 1 and abs(sentinel) > SENTINEL * float(np.abs(rest).max()) > 0:
            kept = masked & (np.abs(candidate - sentinel) < 0.5 * abs(sentinel))
            reference, candidate = np.where(masked, 0, reference), np.where(kept, 0, candidate)
    return reference, candidate


def _unresolved(values: Array, std: float, sqnr_db: float, by_step: bool, standing: bool = False) -> str:
    """Returns why values cannot follow a float model that varies by `std`, or nothing where they can.

    `by_step` says that steps larger than the variation settle it. Among many elements they need not: each stands at a
    place of its own, and untrained networks, which hardly move on noise (`standing`), are no worse for it.
    """
    if sqnr_db >= FLOOR_DB:
        return ""
    if (values == values[:1]).all():
        return "it gives one value only" if (values == values.flat[0]).all() else "it gives the same for every sample"
    distinct = np.unique(values if values.size < MAX_SORTED else values.ravel()[:MAX_SORTED])
    step = float(np.diff(distinct).min())
    if by_step and 2 * std < step:
        few = f"{len(distinct)} values" if len(distinct) < 10 else "values"
        return f"it gives {few} in steps of {step:.3g} where the float model varies by {std:.3g} (std)"
    if sqnr_db < BURIED_DB and not standing:
        return f"its error is {10 ** (-sqnr_db / 20):.3g} times what varies"
    return ""


def _offset(elements: Elements) -> str:
    """Returns by how much elements that follow the float model are off throughout, or nothing where none is."""
    error = np.subtract(elements.candidate, elements.reference, dtype=np.float64)[:, elements.varying]
    variance, offset = elements.variance[elements.varying], error.mean(axis=0)
    off = np.flatnonzero(
        (np.abs(offset) > 2 * np.sqrt(variance)) & (ratios_db(variance, error.var(axis=0, ddof=1)) >= FLOOR_DB)
    )
    if not off.size:
        return ""
    worst = off[np.argmax(np.abs(offset[off]) / np.sqrt(variance[off]))]
    std = float(np.sqrt(variance[worst]))
    return f"it is off by {offset[worst]:.3g} throughout where the float model varies by {std:.3g} (std)"


def is_quiet(values: Array) -> bool:
    """Returns whether probabilities stay at 0 or 1 throughout: a detector of what is not in the samples."""
    if float(np.minimum(values[0], 1 - values[0]).max()) >= QUIET:
        return False
    if values.min() < -FLOAT_NOISE or values.max() > 1 + FLOAT_NOISE:
        return False
    return float(np.minimum(values, 1 - values).max()) < QUIET and float(np.ptp(values, axis=0).max()) < QUIET


def _lost_numbers(name: str, reference: Array, candidate: Array) -> tuple[str, ...]:
    """Returns sentences on class numbers or flags of which the build gives only one, or that it does not get right."""
    if len(reference) < ENOUGH_SAMPLES:
        return ()
    share = _commonest_share(reference)
    # A rare class may be missed by chance; what is common may not.
    if (candidate == candidate.flat[0]).all():
        values = len(np.unique(reference))
        said = f"takes {values} values in the float model over {len(reference)} samples and only {candidate.flat[0]}"
        return (f"output '{name}' {said} in this build",) if share < COMMON else ()
    right = float(np.mean(candidate == reference))
    error = np.subtract(candidate, reference, dtype=np.float64)
    if right <= share and share < COMMON and ratio_db(float(reference.var()), float(np.mean(error**2))) < WRONG_DB:
        return (f"{right:.0%} of the numbers of output '{name}' are those of the float model",)
    for axis in (axis for axis, size in enumerate(reference.shape) if axis and 1 < size <= MAX_PARTS):
        rows = np.moveaxis(candidate, axis, 0).reshape(candidate.shape[axis], -1)
        own = np.moveaxis(reference, axis, 0).reshape(rows.shape)
        still = np.flatnonzero((rows == rows[:, :1]).all(1))
        lost = [int(row) for row in still if _commonest_share(own[row]) < COMMON]
        if lost:
            which = ", ".join(map(str, lost[:NAMED])) + (" and more" if len(lost) > NAMED else "")
            place = f"row{'s' * (len(lost) > 1)} {which} of axis {axis} of output '{name}'"
            return (f"{place} take several values in the float model and one in this build",)
    return ()


def _commonest_share(numbers: Array) -> float:
    return float(np.unique(numbers, return_counts=True)[1].max()) / numbers.size


def _lost(parts: Parts, elements: Elements, centred_db: float) -> Array:
    """Returns which are the parts whose variation is lost although it means something.

    A part is lost where the build stands still, has steps larger than the variation, or buries it in errors. Of few
    elements every one counts, unless the output as a whole is no better. Of many, parts count that vary far less than
    all others (boxes and scores in one output), and those that stand still although they vary by more than the build
    is wrong elsewhere. Pixels and anchors of which some hardly ever change shade off instead, and lose nothing that is
    seen. A part that is wrong by far more than the others are is lost as well; of the small ones along several axes, as
    the rows of each channel of a map, only where its error stands apart from theirs: among thousands some are worst.
    """
    harmless = np.zeros(len(parts.std), bool)
    if elements.probabilities:
        harmless = parts.reach < QUIET
    elif elements.rectified and np.prod(parts.shape) > FEW_ELEMENTS:
        harmless = parts.reach < MARGIN_STEPS * elements.step
    low = (parts.sqnr_db < FLOOR_DB) & ~harmless
    followed = parts.error[parts.sqnr_db >= FLOOR_DB]
    usual_error = float(np.median(followed)) if followed.size else float(np.sqrt(np.mean(parts.error**2)))
    wrong = low & (parts.sqnr_db < WRONG_DB) & (parts.error > MARGIN_STEPS * usual_error)
    wrong &= 2 * followed.size >= parts.error.size
    if len(parts.axes) > 1:
        # The largest error that is reached from the median without a step of `SHADE`
        order = np.sort(parts.error)[parts.error.size // 2 :]
        steps = np.flatnonzero(order[1:] >= SHADE * order[:-1])
        wrong &= parts.error > float(order[steps[0]] if steps.size else order[-1])
    if not elements.few or centred_db < FLOOR_DB:
        wrong |= low & parts.still & (parts.std > MARGIN_STEPS * usual_error)
        low &= parts.below_gap()
    lost = low & parts.still
    for part in np.flatnonzero(low & ~parts.still)[:MAX_LOOKED_AT].tolist():
        _, values = parts.values(elements, part)
        lost[part] = bool(_unresolved(values, float(parts.std[part]), float(parts.sqnr_db[part]), by_step=True))
    for part in np.flatnonzero(wrong & ~lost)[:MAX_LOOKED_AT].tolist():
        expected, got = parts.values(elements, part)
        error = np.square(np.subtract(got, expected, dtype=np.float64)).reshape(elements.samples, -1).mean(1)
        often = 3 if elements.few else max(3, elements.samples // 10)
        lost[part] = bool(np.count_nonzero(error > 0.25 * error.mean()) >= often)
    return np.asarray(lost)


def _sentences(name: str, parts: Parts, lost: Array, elements: Elements) -> Iterator[str]:
    """Yields one sentence for the parts that stand still and one for those that are wrong in another way."""
    for still, said in ((True, ("is constant", "are constant")), (False, ("does not follow", "do not follow"))):
        chosen = np.flatnonzero(lost & (parts.still == still))
        if chosen.size:
            std = f"std {parts.std[chosen].max():.3g}" + (" at most" if len(chosen) > 1 else "")
            verb, rest = ("varies", said[0]) if len(chosen) == 1 else ("vary", said[1])
            yield (
                f"{parts.named(chosen, elements)} of output '{name}' {verb} in the float model ({std} over "
                f"{elements.samples} samples) and {rest} in this build"
            )


def _uneven_parts(name: str, elements: Elements, families: Iterable[Parts]) -> str:
    """Returns the sentence on parts of one output that are too different in range for one scale, or nothing."""
    if elements.probabilities or elements.rectified:
        return ""
    for parts in families:
        if len(parts.axes) > 1 or len(parts.std) < 2:
            continue
        small = (parts.sqnr_db < KEPT_DB) & ((LEVELS - 1) * elements.step > UNEVEN * 2 * parts.reach)
        small &= parts.reach.max() > UNEVEN / 10 * parts.reach
        if not elements.few:
            small &= parts.below_gap()
        if small.any() and not small.all():
            chosen = np.flatnonzero(small)
            named, within = parts.named(chosen, elements), 2 * float(parts.reach[chosen].max())
            return (
                f"the values of output '{name}' reach {elements.size:.3g}, those of {named} vary within {within:.3g}: "
                "with one scale for all, integers keep little of the smaller; make them outputs of their own "
                "(a detector: --task)"
            )
    return ""


def _strays(name: str, elements: Elements) -> str:
    """Returns the sentence on samples that are wrong, or cut off at a limit, unlike the others, or nothing.

    Where half of the samples show no error at all, as of scores that are mostly 0, one that does is not a stray.
    """
    error, usual = elements.sample_error, float(np.median(elements.sample_error))
    if not usual or ratio_db(float(elements.variance.sum()), usual) < FLOOR_DB:
        return ""
    margin = 0.5 * float(np.sqrt(elements.variance[elements.varying].mean()))
    for end, sign in ((np.max, 1), (np.min, -1)) if elements.few else ():
        limit, reached = float(end(elements.candidate)), float(end(elements.reference))
        if sign * (reached - limit) <= margin:
            continue
        beyond = sign * (elements.reference - limit) > margin
        cut = int(np.count_nonzero((beyond & (elements.candidate == limit)).reshape(elements.samples, -1).any(axis=1)))
        if cut >= max(3, CUT_SHARE * elements.samples):
            return (
                f"output '{name}' stops at {limit:.3g} in {cut} of {elements.samples} samples where the float model "
                f"reaches {reached:.3g}: calibrate with samples like these, or -O method=minmax"
            )
    large = np.flatnonzero(error > MARGIN_STEPS**2 * usual).tolist()
    mean = elements.reference.mean(axis=0) if large else 0.0
    deviation = {sample: float(np.square(elements.reference[sample] - mean).sum()) for sample in large}
    stray = [sample for sample in large if ratio_db(deviation[sample], float(error[sample])) < WRONG_DB]
    if stray:
        which = ", ".join(map(str, stray[:NAMED])) + (" and more" if len(stray) > NAMED else "")
        return (
            f"output '{name}' is wrong for {len(stray)} of {elements.samples} samples ({which}) and right for the "
            "others: calibrate with samples like these"
        )
    return ""
