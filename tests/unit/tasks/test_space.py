"""One joint space or a refusal; vectors with a direction or an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anynpu.errors import AccuracyError, ConfigError
from anynpu.tasks.space import Space, cosines, embedding_output, joint, probabilities, unit
from anynpu.tensors import TensorSpec

CLIP = Space("clip", 512)


def test_two_towers_of_one_space_are_comparable():
    assert joint(CLIP, 512, replace(CLIP, width=None), 512) == CLIP


@pytest.mark.parametrize(
    "other, width, words",
    [
        (Space("clip-laion", 512), 512, "name clip and clip-laion"),
        (Space("clip", 256), 256, "width 512 and 256"),
        (Space("clip"), 256, "width 512 and 256"),
        (replace(CLIP, normalized=False), 512, "normalisation True and False"),
        (replace(CLIP, logit_scale=10), 512, "logit scale 100.0 and 10"),
    ],
)
def test_anything_else_is_refused(other, width, words):
    with pytest.raises(ConfigError, match=words):
        joint(CLIP, 512, other, width)


def test_a_text_tower_of_256_numbers_is_none_of_a_space_of_512():
    with pytest.raises(ConfigError, match="512 numbers a vector, the model gives 256"):
        embedding_output(CLIP, [TensorSpec("text", (1, 256), "int16")])


@pytest.mark.parametrize("shapes", [[], [(1, 512), (1, 512)], [(1, 50, 512)], [(512,)]])
def test_an_embedding_is_one_output_of_two_axes(shapes):
    with pytest.raises(ConfigError, match="one output"):
        embedding_output(CLIP, [TensorSpec(f"o{n}", shape) for n, shape in enumerate(shapes)])


@pytest.mark.parametrize("data", [{"name": ""}, {"width": 0}, {"logit_scale": 0.0}, {"logit_scale": float("nan")}])
def test_a_space_that_says_nothing_is_refused(data):
    with pytest.raises(ConfigError):
        Space(**{"name": "clip", **data})


def test_vectors_get_length_one_however_large_or_small():
    rows = np.array([[3, 4], [3e-38, 4e-38], [3e38, -3e38]], np.float32)
    assert np.allclose(np.linalg.norm(unit(rows, "abc"), axis=1), 1, atol=1e-6)
    assert np.array_equal(unit(rows[:1], "a", normalized=False), rows[:1])


@pytest.mark.parametrize("bad, words", [(np.nan, "NaN"), (np.inf, "NaN"), (0, "zeros")])
def test_a_vector_without_direction_is_no_embedding(bad, words):
    rows = np.array([[1, 2], [bad, bad]], np.float32)
    with pytest.raises(AccuracyError, match=f"second: .*{words}"):
        unit(rows, ["first", "second"])


def test_cosines_and_probabilities():
    a = np.array([[1, 0], [1, 1]], np.float32)
    assert np.allclose(cosines(a, a * 5), [[1, 0.70710677], [0.70710677, 1]], atol=1e-6)
    assert np.allclose(probabilities(np.array([[1e4, 1e4, -1e4]])), [[0.5, 0.5, 0]])
