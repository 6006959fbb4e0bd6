"""Rows of padding, which no answer depends on.

A text is mostly shorter than the input of its model, and the rest is padding under a mask. What the model computes of
padding would shift means and make channels look louder than they are where it counts. Ranges hold padding all the same:
what is clipped there would look like an error to whoever compares tensors. Which rows these are is not guessed from
names: an input of zeros and ones is a mask where other numbers at its zeros change no answer, and a tensor has rows of
padding along an axis where these other numbers change it there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.quantize.net import Form
from anynpu.tensors import Array

Given = Callable[[dict[str, Array]], Mapping[str, Array]]
Counting = Callable[[Mapping[str, Array], Mapping[str, Array]], Mapping[str, Array]]
"""Returns of the tensors of a sample what counts."""
PROBES = 2
_SAME = 1e-5
"""How far two results may lie apart that are the same but for rounding, as a share of the largest value."""


@dataclass(frozen=True)
class Padding:
    """An input that masks others, and pairs of samples that differ in what is masked alone."""

    mask: str
    probes: tuple[tuple[dict[str, Array], dict[str, Array]], ...]

    def leaving_out(self, run: Given) -> Counting:
        """Returns a function that takes rows of padding out of what `run` gives for a sample."""
        axes = self.axes(run)

        def without(tensors: Mapping[str, Array], sample: Mapping[str, Array]) -> Mapping[str, Array]:
            real = np.flatnonzero(sample[self.mask])
            return {name: values.take(real, axes[name]) if name in axes else values for name, values in tensors.items()}

        return without

    def axes(self, run: Given) -> dict[str, int]:
        """Returns the axis along which a tensor has rows of padding, for those that have any."""
        candidates: dict[str, set[int]] = {}
        for name, apart, mask in self._differences(run):
            fitting = {
                axis for axis in _along(apart, mask) if apart.any() and not apart.take(mask.nonzero()[0], axis).any()
            }
            candidates[name] = candidates.get(name, fitting) & fitting
        return {name: axes.pop() for name, axes in candidates.items() if len(axes) == 1}

    def unread(self, run: Given) -> bool:
        """Tells whether what is masked changes nothing but rows of padding."""
        return all(
            not apart.any() or any(not apart.take(mask.nonzero()[0], axis).any() for axis in _along(apart, mask))
            for _, apart, mask in self._differences(run)
        )

    def _differences(self, run: Given) -> Iterator[tuple[str, Array, Array]]:
        """Yields for each tensor of each pair where it differs, and the mask."""
        for one, other in self.probes:
            first = {name: values.copy() for name, values in run(one).items()}
            for name, values in run(other).items():
                largest = np.abs(first[name]).max(initial=0) if values.dtype.kind == "f" else 0
                same = np.isclose(values, first[name], rtol=0, atol=_SAME * largest)
                yield name, ~same, one[self.mask].reshape(-1)


def _along(values: Array, mask: Array) -> list[int]:
    """Returns the axes that are as long as a mask."""
    return [axis for axis, size in enumerate(values.shape) if size == len(mask)]


def find_padding(form: Form, inputs: Mapping[str, Array]) -> Padding | None:
    """Returns the input of samples that masks the others where there is one."""
    for name, array in inputs.items():
        others = [other for other, values in inputs.items() if other != name and values.shape == array.shape]
        if array.dtype.kind not in "iub" or not others or not np.isin(array, (0, 1)).all():
            continue
        rows = array.reshape(len(array), -1)
        padded = np.flatnonzero(rows.any(axis=1) & ~rows.all(axis=1))[:PROBES]
        probes = []
        for at in padded:
            sample = {key: values[at : at + 1] for key, values in inputs.items()}
            # What stands at the first place, where texts begin with a number of their own, stands in every masked one.
            masked = {key: np.where(sample[name] == 0, sample[key].reshape(-1)[0], sample[key]) for key in others}
            if any((values != sample[key]).any() for key, values in masked.items()):
                probes.append((sample, {**sample, **masked}))
        padding = Padding(name, tuple(probes))
        outputs = form.net().outputs
        if probes and outputs <= {*(run := form.run(outputs))(probes[0][0])} and padding.unread(run):
            return padding
    return None
