"""What is not left to calibration: ranges and scales that training ended with, that a model brought, or that the user
states in a quantisation file. One form for all three, and every emitter keeps to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from anynpu import schema
from anynpu.errors import ConfigError
from anynpu.quantize.net import Net
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, planned_form, quantization_for
from anynpu.quantize.weights import integer_bits, largest_integer
from anynpu.records.quantisation import FILE, ORIGINS, Emitter, Origin, Quantisation, TensorForm
from anynpu.tensors import Array, Quantization

P = TypeVar("P", bound=QuantPlan)


@dataclass(frozen=True)
class FixedWeights:
    """The integers of stored weights: their width, scales, and the axis of these."""

    bits: int
    scale: tuple[float, ...]
    axis: int | None = None

    def kept(self, weights: Array) -> NDArray[np.float32]:
        """Returns what the integers keep of weights."""
        form = Quantization(self.scale, (0,) * len(self.scale), self.axis)
        most = largest_integer(self.bits)
        return form.dequantize(np.clip(form.quantize(weights, "int8"), -most, most))


@dataclass(frozen=True)
class Fixed:
    """Ranges of activations and scales of weights that hold as they are."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    scales: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Scale and zero point of those of the ranges that were not stated as a range."""
    weights: Mapping[str, FixedWeights] = field(default_factory=dict)
    origin: Origin = "file"
    repaired: bool = True
    """Whether weights and biases may still be changed; trained ones lie on their grids."""
    stated: frozenset[str] = frozenset()
    """The ranges that the user states."""
    copies: Mapping[tuple[str, str], Range] = field(default_factory=dict)
    """The ranges of tensors where they are read in another type, by that type."""

    @property
    def origins(self) -> dict[str, Origin]:
        """Where the ranges come from."""
        return {name: "stated" if name in self.stated else self.origin for name in self.ranges}


NOTHING = Fixed()
COMPILERS: Mapping[Emitter, str] = {
    "qdq": "cpu", "tflite": "tflite", "qnn": "qnn", "cvi": "cvi", "ai8x": "ai8x", "quark": "vitisai", "rknn": "rknn",
}  # fmt: skip
"""Who writes the quantisation of each emitter."""
FOLLOWING: tuple[Origin, ...] = ("kernel", "tied", "bias", "constant")
"""What nobody chooses: it follows from other tensors, or from the kernels."""


@dataclass(frozen=True)
class Stated:
    """A quantisation that the user states, and the file that it is from."""

    path: Path
    quantisation: Quantisation

    def over(self, fixed: Fixed, net: Net, plan: QuantPlan) -> Fixed:
        """Returns what is fixed in a graph: what the file states, and what was before."""
        if not fixed.repaired:
            raise ConfigError(
                "-O quantisation: training has decided all ranges and scales of this model", "leave one of them out"
            )
        ranges, weights = dict[str, Range](), dict[str, FixedWeights]()
        scales: dict[str, tuple[float, int]] = {}
        layers = {operation.layer.weights for operation in net.operations if operation.layer is not None}
        for name, form in self.quantisation.tensors.items():
            if name in layers and form.scale:
                bits = integer_bits(form.dtype) if form.dtype else plan.weight_bits
                weights[name] = FixedWeights(bits, form.scale, form.axis)
            elif name in net.computed and form.origin not in FOLLOWING:
                limits = self._range(name, form, form.dtype or plan.stored_type(name), plan)
                ranges |= {name: limits} if limits is not None else {}
                scales |= {name: (form.scale[0], form.zero_point[0])} if limits is not None and form.scale else {}
        return Fixed({**fixed.ranges, **ranges}, scales, weights, fixed.origin, stated=frozenset(ranges))

    def _range(self, name: str, form: TensorForm, dtype: str, plan: QuantPlan) -> Range | None:
        """Returns the range that a form states; raises where its range and its scale contradict each other."""
        if dtype == "float32" or (form.range is None and not form.scale):
            return None
        if form.range is not None:
            limits = Range(*form.range)
            usual, other = planned_form(limits, dtype, plan), quantization_for(limits, dtype, False)
            points = [each.zero_point for each in (usual, other) if np.allclose(each.scale, form.scale, 1e-5, 0)]
            if form.scale and form.zero_point not in points:
                raise self.error(
                    name,
                    f"the range {list(form.range)} has the scale {usual.scale[0]:.6g} and the zero point "
                    f"{usual.zero_point[0]}, not {form.scale[0]:.6g} and {form.zero_point[0]}",
                    "delete scale and zero_point to keep to the range, or the range to keep to the scale",
                )
            return limits
        if len(form.scale) != 1:
            raise self.error(name, "an activation has one scale", "")
        integers = np.iinfo(dtype)
        # Symmetric integers reach as far down as up: from 1 to 255 around 128.
        low = integers.min + int(plan.is_symmetric(dtype))
        point, scale = form.zero_point[0], float(np.float32(form.scale[0]))
        if not integers.min <= point <= integers.max:
            raise self.error(name, f"the zero point {point} lies outside of {dtype}", "")
        return Range((low - point) * scale, (integers.max - point) * scale)

    def chosen(self, computed: Collection[str], dtype: str, hint: str) -> dict[str, TensorForm]:
        """Returns what is stated of results; raises where one has another type than the only one that there is."""
        tensors = self.quantisation.tensors
        forms = {name: form for name, form in tensors.items() if name in computed and form.origin not in FOLLOWING}
        for name, form in forms.items():
            if form.dtype not in ("", dtype):
                raise self.error(f"{name}.dtype", f"results are stored as {dtype}, not {form.dtype}", hint)
        return forms

    def planned(self, plan: P, automatic: Mapping[str, str]) -> P:
        """Returns the plan with the types that the file states; `automatic` are the types of a build without it."""
        types = {name: form.dtype for name, form in self.quantisation.tensors.items() if form.dtype}
        changed = {name: dtype for name, dtype in types.items() if name in automatic and automatic[name] != dtype}
        wide = [name for name, dtype in changed.items() if dtype == plan.wide and plan.bits == 8]
        floating = [name for name, dtype in changed.items() if dtype == "float32"]
        return replace(
            plan,
            wide_tensors=tuple(dict.fromkeys((*plan.wide_tensors, *wide))),
            float_tensors=tuple(dict.fromkeys((*plan.float_tensors, *floating))),
        )

    def check(self, built: Quantisation, automatic: Quantisation | None = None) -> None:
        """Raises unless a build stores every tensor as the file states it.

        What follows from others, such as the scale of a bias, may follow what was edited; `automatic` is the build
        without the file, which tells it from what was edited itself. Where that is not known nobody is held to it.
        """
        if self.quantisation.equalized not in ("", built.equalized):
            raise ConfigError(
                f"{self.path}: its ranges are those of channels that were made equally loud by other factors",
                "build with the --data and options of the build that it comes from, both with -O equalize=false",
            )
        for name, form in self.quantisation.tensors.items():
            stored = built.tensors.get(name)
            before = form if automatic is None else automatic.tensors.get(name)
            if stored is None:
                raise self.error(name, f"the model stores no such tensor{schema.near(name, built.tensors)}", "")
            if form.origin in FOLLOWING and before is not None and form.scale and form.same_form(before):
                continue
            if form.dtype and form.dtype != stored.dtype:
                raise self.error(f"{name}.dtype", f"is {stored.dtype}, and cannot be {form.dtype}", _why(stored))
            if form.scale and not form.same_scale(stored):
                words = f"is {stored.in_words()}, and cannot be {form.in_words().removeprefix('with ')}"
                raise self.error(f"{name}.scale", words, _why(stored))
            if form.range is not None and (stored.range is None or not np.allclose(form.range, stored.range, 1e-6)):
                words = f"is {stored.in_words()}, and cannot be chosen for {list(form.range)}"
                raise self.error(f"{name}.range", words, _why(stored))

    def error(self, place: str, words: str, hint: str) -> ConfigError:
        """Returns the error for one place of the file."""
        return ConfigError(f"{self.path}: tensors.{place}: {words}", hint)


def _why(form: TensorForm) -> str:
    return ORIGINS[form.origin] if form.origin is not None else ""


def read_stated(path: Path | None, emitter: Emitter) -> Stated | None:
    """Returns what the file of -O quantisation states, None where there is none; a file of another emitter raises."""
    if path is None:
        return None
    stated = Stated(path, schema.from_dict(Quantisation, _listed(schema.read_json(path)), str(path)))
    other = stated.quantisation.emitter
    if other not in (None, emitter):
        raise ConfigError(
            f"{path}: is the quantisation of a {other} file, and its names are not those of a {emitter} file",
            f"-O {COMPILERS[other]}.quantisation={path}",
        )
    return stated


def _listed(record: Any) -> Any:
    """Returns a record in which a scale or a zero point that was written as a number is a list of one."""
    tensors = record.get("tensors") if isinstance(record, dict) else None
    for form in tensors.values() if isinstance(tensors, dict) else ():
        for key in ("scale", "zero_point") if isinstance(form, dict) else ():
            if isinstance(form.get(key), int | float):
                form[key] = [form[key]]
    return record


def form_of(dtype: str, quantization: Quantization, limits: Range | None, origin: Origin | None) -> TensorForm:
    """Returns the form of a tensor."""
    scale, points = tuple(map(float, quantization.scale)), tuple(map(int, quantization.zero_point))
    known = None if limits is None else (float(limits.min), float(limits.max))
    return TensorForm(dtype=dtype, scale=scale, zero_point=points, axis=quantization.axis, range=known, origin=origin)


def keep_quantisation(quantisation: Quantisation, result: Path) -> None:
    """Writes a quantisation next to the file that it is of."""
    result.with_name(FILE).write_text(schema.canonical_json(schema.to_dict(quantisation)) + "\n", "utf-8")


def digest_of(factors: Mapping[str, Sequence[float]]) -> str:
    """Returns a short digest of the factors by which channels are louder, empty where none is."""
    rough = {name: [f"{each:.3g}" for each in values] for name, values in factors.items()}
    return schema.digest(rough)[:16] if rough else ""
