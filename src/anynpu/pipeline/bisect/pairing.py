"""Which tensors of two files are the same, and how far two sets of values are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anynpu.errors import ConfigError
from anynpu.measure.decibels import MAX_DB, ratio_db
from anynpu.pipeline.bisect.files import ModelFile, Place
from anynpu.records.bisect import OutputDifference
from anynpu.tensors import Array


def places_like(file: ModelFile, reference: ModelFile) -> dict[str, Place]:
    """Returns where the tensors of a reference file lie in another one, by their names in the reference.

    Converters and quantisers of ours keep names. Two TFLite files that share few are aligned by kind and shape.
    """
    own, theirs = file.places(), reference.places()
    places = {name: place for name in theirs if name in own and (place := _fitted(name, own[name], file, reference))}
    if file.suffix == reference.suffix == ".tflite" and len(places) < len(theirs) // 2:
        from anynpu.targets.tflite_outline import same_tensors

        pairs = same_tensors(file.path, reference.path)
        places = {
            other: own[name] for name, other in reversed(pairs.items()) if name in own and other in theirs
        } | places
    return places


def _fitted(name: str, place: Place, file: ModelFile, reference: ModelFile) -> Place | None:
    """Returns the place with the order of its axes; None where the two cannot be the same tensor."""
    own, wanted = place.shape, reference.places()[name].shape
    if own is None or wanted is None:
        return place if own == wanted else None
    if file.suffix != reference.suffix and len(own) == len(wanted) > 2:
        last = (0, *range(2, len(own)), 1)
        order = last if file.suffix == ".tflite" else tuple(int(axis) for axis in np.argsort(last))
        moved = tuple(wanted[axis] for axis in order)
        turned = file if file.suffix == ".tflite" else reference
        if own == moved and (own != wanted or turned.outline.tensors[name].layout == "NHWC"):
            return replace(place, axes=order)
    return place if own == wanted else None


def require_one_model(a: ModelFile, b: ModelFile, names: tuple[str, str], places: Mapping[str, Place]) -> None:
    """Raises unless two files take and give the same tensors."""
    for what, ours, theirs in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        mine, others = {spec.name for spec in ours}, {spec.name for spec in theirs}
        if mine != others:
            text = f"{', '.join(sorted(mine))} and {', '.join(sorted(others))}"
            raise ConfigError(f"{names[0]} and {names[1]} are different models: their {what} are {text}")
        for spec in ours:
            if spec.name not in places:
                other = next(each.shape for each in theirs if each.name == spec.name)
                text = f"{spec.name} is {list(spec.shape)} and {list(other)}"
                raise ConfigError(f"{names[0]} and {names[1]} are different models: {text}")


def difference(tensor: str, a: Array, b: Array) -> OutputDifference:
    """Returns how far B is from A; values that are not finite are as far as can be unless both have them."""
    wanted, got = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if wanted.shape != got.shape:
        raise ConfigError(f"{tensor}: A has shape {list(wanted.shape)}, B {list(got.shape)}")
    same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
    error = np.where(same, 0.0, np.abs(got - wanted))
    lost = ~np.isfinite(error)
    worst = int(np.argmax(np.where(lost, np.inf, error))) if error.size else 0
    at = np.unravel_index(worst, error.shape) if error.size else ()
    signal = float(np.sum(np.where(np.isfinite(wanted), wanted, 0.0) ** 2))
    sqnr_db = -MAX_DB if lost.any() else ratio_db(signal, float(np.sum(error**2)))
    most = float(np.max(error[~lost], initial=0.0))
    first, second = (np.nan_to_num(x.reshape(-1)[worst]) if x.size else 0.0 for x in (wanted, got))
    place = tuple(int(i) for i in at)
    return OutputDifference(
        tensor=tensor, sqnr_db=sqnr_db, max_abs_error=most, at=place, a=float(first), b=float(second)
    )


def worst_of(a: Mapping[str, Array], b: Mapping[str, Array]) -> OutputDifference:
    """Returns the difference of the tensor that is furthest apart."""
    return min((difference(name, a[name], b[name]) for name in a), key=lambda apart: apart.sqnr_db)


def disagrees(apart: OutputDifference, tolerance_db: float | None) -> bool:
    """Whether a difference counts; without a tolerance every value must be equal."""
    return apart.sqnr_db < (MAX_DB if tolerance_db is None else tolerance_db)
