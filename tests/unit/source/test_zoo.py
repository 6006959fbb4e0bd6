"""The zoo: generated data, stored weights, and the accuracy that the cards claim."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure.metrics import METRICS, score
from anynpu.source import zoo

CHANCE = {"hello": 1 / 16, "resnet8": 0.1, "kws": 1 / 12, "vww": 0.5, "autoencoder": 0.5, "detector": 0.0}
ROOT = Path(__file__).resolve().parents[3]


def _digests(samples):
    (inputs,) = samples.inputs.values()
    return [hashlib.sha256(one.tobytes()).hexdigest() for one in inputs]


@pytest.fixture(scope="module", params=zoo.names())
def name(request):
    return request.param


def _outputs(name, samples):
    torch = pytest.importorskip("torch")
    card = zoo.card(name)
    network = zoo.model(name)
    assert not network.training
    with torch.no_grad():
        output = torch.cat([network(part) for part in torch.from_numpy(samples.inputs[card.input_name]).split(50)])
    return {card.output_names[0]: output.numpy()}


def test_card_is_complete(name):
    card = zoo.card(name)
    assert card.name == name
    assert card.metric in METRICS
    assert card.layout in {"NCHW", "NF"}
    assert card.input_shape[0] == 1
    assert len(card.input_shape) == len(card.layout)
    assert 0.8 < card.accuracy <= 1
    assert card.title and card.description and card.classes and card.value_range in {"0..1", "-1..1"}


def test_samples_have_the_shape_type_and_range_of_the_card(name):
    card = zoo.card(name)
    (inputs,) = zoo.samples(name, "calibration", 40).inputs.values()
    assert inputs.shape == (40, *card.input_shape[1:])
    assert inputs.dtype == np.float32
    low, high = map(float, card.value_range.split(".."))
    assert low <= inputs.min() and inputs.max() <= high
    assert inputs.reshape(40, -1).std(axis=1).min() > 0.01


def test_samples_repeat_and_a_longer_request_begins_alike(name):
    short, long = zoo.samples(name, "test", 6), zoo.samples(name, "test", 15)
    assert _digests(short) == _digests(long)[:6]
    assert np.array_equal(short.labels, long.labels[:6])


def test_splits_are_disjoint(name):
    digests = [
        digest for split in ("train", "calibration", "test") for digest in _digests(zoo.samples(name, split, 60))
    ]
    assert len(set(digests)) == 180


def test_labels_are_balanced(name):
    labels = zoo.samples(name, "test", 240).labels
    kinds = labels[..., 0][labels[..., 0] >= 0] if name == "detector" else labels
    counts = np.unique(kinds, return_counts=True)[1]
    assert len(counts) == len(zoo.card(name).classes)
    assert counts.max() <= 1.15 * counts.min()


def test_autoencoder_learns_from_normal_sounds_only():
    assert not zoo.samples("autoencoder", "train", 50).labels.any()
    assert not zoo.samples("autoencoder", "calibration", 50).labels.any()


def test_float_accuracy_is_what_the_card_says(name):
    samples, card = zoo.samples(name, "test", 300), zoo.card(name)
    outputs = _outputs(name, samples)
    assert all(np.isfinite(output).all() for output in outputs.values())
    found = score(card.metric, samples.inputs, outputs, samples.labels)
    assert found == pytest.approx(card.accuracy, abs=0.03)
    assert found > CHANCE[name] + 0.35
    shuffled = np.random.default_rng(0).permutation(samples.labels)
    assert score(card.metric, samples.inputs, outputs, shuffled) < found - 0.3


def test_weights_are_small_finite_and_not_pickled(name):
    path = zoo.folder(name) / "weights.npz"
    assert path.stat().st_size < 1_000_000
    with np.load(path, allow_pickle=False) as stored:
        assert all(np.isfinite(stored[key]).all() for key in stored.files)


def test_parameters_and_macs_are_those_of_the_figures(name):
    pytest.importorskip("torch")
    from anynpu.source.zoo.train import macs

    network, figures = zoo.model(name), json.loads((zoo.folder(name) / "figures.json").read_text())
    assert sum(parameter.numel() for parameter in network.parameters()) == figures["parameters"]
    assert macs(network, name) == figures["macs"]


def test_int8_figures_meet_the_promise(name):
    figures = json.loads((zoo.folder(name) / "figures.json").read_text())
    assert figures["int8_sqnr_db"] >= 30
    assert abs(figures["int8_accuracy"] - figures["accuracy"]) <= 0.01


@pytest.mark.parametrize("small", ["kws", "autoencoder"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_int8_figures_are_measured(small):
    pytest.importorskip("torch")
    from anynpu.source.zoo import train

    samples, network = zoo.samples(small, "test", train.COMPARED_SAMPLES), zoo.model(small)
    (reference,) = train.run(network, small, samples).values()
    (got,) = train.int8_outputs(network, small, samples).values()
    figures = json.loads((zoo.folder(small) / "figures.json").read_text())
    assert train.sqnr_db(reference, got)[0] == pytest.approx(figures["int8_sqnr_db"], abs=1)


def test_sqnr_by_hand():
    pytest.importorskip("torch")
    from anynpu.source.zoo.train import sqnr_db

    reference = np.array([9.0, 11.0])
    assert sqnr_db(reference, reference + 0.1) == pytest.approx((10 * np.log10(101 / 0.01), 20.0))


def test_docs_table_shows_the_figures(name):
    figures = json.loads((zoo.folder(name) / "figures.json").read_text())
    rows = [line for line in (ROOT / "docs/zoo.md").read_text().splitlines() if line.startswith(f"| `{name}`")]
    assert len(rows) == 1
    for text in (f"{figures['accuracy']:.1%}", f"{figures['int8_accuracy']:.1%}", f"{figures['int8_sqnr_db']:.1f}",
                 f"{figures['parameters']:,}", f"{figures['training_cpu_s']} s"):  # fmt: skip
        assert text in rows[0]


def test_hello_takes_any_size():
    torch = pytest.importorskip("torch")
    output = zoo.model("hello")(torch.rand(1, 3, 40, 24))
    assert tuple(output.shape) == (1, 256, 40, 24)
    assert float(output.detach().min()) >= 1


def test_files_cover_code_and_weights(name):
    found = {path.name for path in zoo.files(name)}
    assert {"__init__.py", "net.py", "weights.npz", "cards.py", "draw.py", "sound.py", "blocks.py"} <= found
    assert all(path.is_file() for path in zoo.files(name))


def test_unknown_name_split_and_count():
    with pytest.raises(ConfigError) as caught:
        zoo.card("resnet")
    assert "resnet8" in caught.value.hint
    with pytest.raises(ConfigError, match="validation"):
        zoo.samples("kws", "validation", 3)
    with pytest.raises(ConfigError, match="at least 1"):
        zoo.samples("kws", "test", 0)


def test_damaged_weights_are_named(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "weights.npz").write_bytes(b"PK damaged")
    monkeypatch.setattr(zoo, "folder", lambda name: tmp_path)
    with pytest.raises(IntegrityError, match="'kws'"):
        zoo.model("kws")


def test_cards_and_samples_need_no_torch():
    code = (
        "import sys; from anynpu.source import zoo; [zoo.card(n) for n in zoo.names()];"
        "[zoo.samples(n, 'test', 1) for n in zoo.names()]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_saved_weights_load_back(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from anynpu.source.zoo import train

    network = zoo.model("kws")
    train.save(network, tmp_path / "weights.npz")
    monkeypatch.setattr(zoo, "folder", lambda name: tmp_path)
    again = zoo.model("kws")
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    )


def test_training_repeats_exactly(monkeypatch):
    torch = pytest.importorskip("torch")
    from anynpu.source.zoo import train

    short = zoo.Recipe(samples=64, epochs=1, quantised_epochs=1, batch=32)
    monkeypatch.setattr(zoo, "recipe", lambda name: short)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        first, second = (train.fit("kws").state_dict() for _ in range(2))
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert first.keys() == zoo.model("kws").state_dict().keys()
