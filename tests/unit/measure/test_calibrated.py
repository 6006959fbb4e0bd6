"""The samples that calibrated an artifact go with it, through every later compiler, and are found again."""

from __future__ import annotations

import clip_vocabulary_maker as maker
import numpy as np
import pytest

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.errors import ConfigError
from anynpu.measure import calibrated
from anynpu.pipeline import disjoint
from anynpu.quantize.calibration import Dataset, sample_digests
from anynpu.tasks.card import Card
from anynpu.tasks.space import Space
from anynpu.tasks.text import TextInput
from anynpu.tensors import TensorSpec

NOW = Made("2026-01-01T00:00:00+00:00", 0.0)
X = TensorSpec("x", (1, 4))


def made(folder, spec=X, step=None, **details):
    folder.mkdir(exist_ok=True)
    (folder / "main").write_text("")
    return seal(folder, Manifest("f", "main", (spec,), details=details), step or Step("test"), NOW)


def samples(folder, data, spec=X):
    return made(folder, spec, random=False, sample_digests=sample_digests(data))


def test_the_samples_go_through_a_later_compiler(tmp_path):
    rows = Dataset({"x": np.eye(4, dtype=np.float32)}, None, "rows")
    source, data = made(tmp_path / "model"), samples(tmp_path / "data", rows)
    assert calibrated.read(source) is None and disjoint.known_of(source) == disjoint.Overlap()
    (tmp_path / "one").mkdir()
    calibrated.keep(tmp_path / "one", data, source)
    one = made(tmp_path / "one")
    (tmp_path / "two").mkdir()
    calibrated.keep(tmp_path / "two", None, one)
    two = calibrated.read(made(tmp_path / "two"))
    assert two is not None and two == calibrated.read(one) and two.data == data.digest and two.inputs == (X,)
    other = Dataset({"x": np.array([[0, 1, 0, 0], [0, 2, 0, 0]], np.float32)}, None, "other")
    found = disjoint.of_arrays(two, other)
    assert found.names == ("sample 0",) and found.calibrated == 4
    with pytest.raises(ConfigError, match="1 of the samples also calibrated"):
        disjoint.require(found, False, tmp_path)
    assert disjoint.require(found, True, tmp_path)[0].startswith("OVERLAP")


def test_an_artifact_that_lost_its_samples_is_not_called_apart(tmp_path):
    lost = disjoint.known_of(made(tmp_path / "old", step=Step("cpu", {"data": "0" * 64})))
    assert isinstance(lost, disjoint.Overlap) and "not known to be apart" in disjoint.require(lost, False, tmp_path)[0]


def test_texts_are_known_by_their_tokens(tmp_path):
    for package in ("ftfy", "regex", "tokenizers"):
        pytest.importorskip(package)
    from anynpu.tasks.text import bind

    spec = TensorSpec("text", (1, 77), "int64")
    text = TextInput("clip", "v.txt.gz", maker.SIZE)
    files = {"v.txt.gz": maker.write_merges(tmp_path / "v.txt.gz")}
    tokens = bind(text, files, (spec,))
    rows = Dataset({"text": np.concatenate([tokens([t])["text"] for t in ("the cat", "the dog")])}, None, "texts")
    (tmp_path / "one").mkdir()
    calibrated.keep(tmp_path / "one", samples(tmp_path / "data", rows, spec), made(tmp_path / "model", spec))
    known = calibrated.read(made(tmp_path / "one", spec))
    assert known is not None
    card = Card("embed-text", text=text, space=Space("words"))
    found = disjoint.of_texts(known, ("the mat", "The  cat", "a dog"), card, files)
    assert found.names == ("'The  cat'",)
