"""Training with rounding in the loop, on a net of three layers: learnt, written, checked, resumed, refused."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, ConfigError, IntegrityError, ToolMissing
from anynpu.pipeline.training import _worse
from anynpu.records.build import Verification
from anynpu.store import Store
from anynpu.targets.roundings import _holds, check_integers
from anynpu.training import fit as fitting
from anynpu.training.files import INTEGERS, RECORD
from anynpu.training.fit import Fit, Lesson, Settings, answers_of, check_samples, prepare_torch
from anynpu.training.record import Epoch, read_integers, read_record
from anynpu.training.scheme import Rounding, Scheme, WeightRounding, integers, reals
from anynpu.training.student import Student, require_torch, rounded
from anynpu.training.train import _classes

torch = pytest.importorskip("torch")

SHAPE = (1, 2, 6, 6)
CLASSES = 4


def net() -> onnx.ModelProto:
    """A convolution, a depthwise one and a dense layer; a Reshape holds the batch of one fast."""
    rng = np.random.default_rng(3)

    def stored(name: str, *shape: int) -> onnx.TensorProto:
        size = 1.5 / np.sqrt(np.prod(shape[1:]) or 1)
        return numpy_helper.from_array(rng.normal(0, size, shape).astype(np.float32), name)

    weights = [
        *(stored("w1", 8, 2, 3, 3), stored("b1", 8), stored("w2", 8, 1, 3, 3), stored("b2", 8)),
        *(stored("w3", CLASSES, 288), stored("b3", CLASSES)),
        numpy_helper.from_array(np.array([1, 288], np.int64), "flat"),
    ]
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], **pads),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], group=8, **pads),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Reshape", ["r2", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["scores"], transB=1),
    ]
    borders = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, CLASSES))]
    graph = helper.make_graph(nodes, "net", borders, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def samples(count: int = 80) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 1, (count, *SHAPE[1:])).astype(np.float32)


def scheme(bits: int = 4) -> Scheme:
    most = 2 ** (bits - 1) - 1
    model = net()
    weights = {}
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            rows = np.abs(numpy_helper.to_array(tensor)).reshape(tensor.dims[0], -1)
            weights[tensor.name] = WeightRounding(-most, most, tuple((rows.max(axis=1) / most).tolist()), 0)
    activations = {"x": Rounding(-128, 127, 0.03), "r1": Rounding(-128, 127, 0.04, -128)}
    return Scheme(activations, weights)


def lesson(model: onnx.ModelProto, labels: object = None) -> Lesson:
    from anynpu.source.onnx_torch import import_model

    inputs = {"x": torch.from_numpy(samples()[:, None])}
    answers = answers_of(import_model(model), inputs, ("scores",), "cpu")
    return Lesson(inputs, answers, labels, "scores" if labels is not None else "")


@pytest.fixture
def short(monkeypatch):
    """Epochs of four steps."""
    monkeypatch.setattr(fitting, "FEWEST_STEPS", 4)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The net built for TFLite with weights of four bits and training."""
    folder = tmp_path_factory.mktemp("training")
    said: list[str] = []

    class Hearing:
        def started(self, chip: str, stage: str) -> None: ...
        def progress(self, done: int, total: int) -> None: ...
        def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None: ...

        def said(self, chip: str, stage: str, words: str) -> None:
            said.append(words)

    result = anynpu.build(
        net(),
        "tflite",
        {"x": samples(600)},
        output=folder / "out",
        weight_bits=4,
        limit=600,
        bias_correction=False,
        qat=True,
        min_sqnr=0.0,
        cache_dir=folder / "cache",
        observer=Hearing(),
    )
    return result, folder, said


def test_four_bits_come_nearer_to_the_float_model_and_the_report_says_so(built):
    result, _, said = built
    (chip,) = result.record.chips
    assert chip.error is None
    (note,) = [note for note in result.record.notes if "trained by the float model on 480 samples" in note]
    before, after = (float(part.split()[-1]) for part in note.split(" dB")[0].split("SQNR")[1].split("->"))
    assert after > before + 1
    assert said[0].startswith("epoch 1 of 12: loss ") and "held-out loss" in said[0]


def test_the_file_holds_the_integers_that_training_ended_with(built):
    """Read with the schema of LiteRT alone: two weights to a byte, the first in the lower half."""
    from ai_edge_litert import schema_py_generated as schema

    _, folder, _ = built
    wanted = read_integers(folder / "out" / "tflite")
    record = read_record(folder / "out" / "tflite")
    model = schema.ModelT.InitFromObj(
        schema.Model.GetRootAs((folder / "out" / "tflite" / "model.tflite").read_bytes(), 0)
    )
    seen = 0
    for tensor in model.subgraphs[0].tensors:
        names = {each.tensor: name for name, each in record.scheme.weights.items()}
        name = names.get(tensor.name.decode())
        if name is None:
            continue
        assert tensor.type == schema.TensorType.INT4
        halves = np.asarray(model.buffers[tensor.buffer].data, np.uint8)
        values = np.stack([halves & 15, halves >> 4], 1).reshape(-1).astype(np.int8)
        values = np.where(values > 7, values - 16, values)[: np.prod(tensor.shape)].reshape(tensor.shape)
        axes = {"w1": (0, 2, 3, 1), "w2": (1, 2, 3, 0), "w3": None}[name]
        expected = wanted[name] if axes is None else wanted[name].transpose(axes)
        assert np.array_equal(values, expected) and np.abs(values).max() == 7
        np.testing.assert_allclose(tensor.quantization.scale, record.scheme.weights[name].scale, rtol=1e-6)
        seen += 1
    assert seen == 3


def test_onnx_runtime_gets_the_same(tmp_path):
    """The QDQ file, read by onnx alone: INT4 weights under the trained scales."""
    result = anynpu.build(
        *(net(), "cpu", {"x": samples(100)}),
        output=tmp_path / "out",
        cache_dir=tmp_path / "cache",
        option={"weight_bits": 4, "bias_correction": "false", "equalize": "false"},
        qat=True,
        min_sqnr=0.0,
    )
    (chip,) = result.record.chips
    assert chip.error is None, chip.error
    assert any(note.startswith("cpu: trained by the float model on 80 samples") for note in result.record.notes)
    trained = next((tmp_path / "cache" / "store").glob("*/*/integers.npz")).parent
    record, wanted = read_record(trained), read_integers(trained)
    files = [path for path in (tmp_path / "cache" / "store").glob("*/*/model.onnx") if (path.parent / RECORD).is_file()]
    graphs = [onnx.load(path).graph for path in files]
    (graph,) = [graph for graph in graphs if any(node.op_type == "QuantizeLinear" for node in graph.node)]
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for name, rounding in record.scheme.weights.items():
        tensor = tensors[f"{name}_quantized"]
        assert tensor.data_type == TensorProto.INT4
        assert np.array_equal(numpy_helper.to_array(tensor).astype(np.int8), wanted[name])
        np.testing.assert_allclose(numpy_helper.to_array(tensors[f"{name}_scale"]), rounding.scale, rtol=1e-6)


def test_other_integers_and_other_ranges_are_refused(built, tmp_path):
    _, folder, _ = built
    compiled = Artifact.open(folder / "out" / "tflite")
    trained = tmp_path / "trained"
    shutil.copytree(compiled.path, trained)
    check_integers(Artifact(trained, compiled.manifest), compiled)
    stored = read_integers(trained)
    stored["w2"].flat[0] += 1 if stored["w2"].flat[0] < 7 else -1
    np.savez(trained / INTEGERS, **stored)
    with pytest.raises(IntegrityError, match="the weights w2 are other integers: the compiled file"):
        check_integers(Artifact(trained, compiled.manifest), compiled)
    stored = read_integers(compiled.path)
    stored["w1"] = stored["w1"].swapaxes(2, 3)
    np.savez(trained / INTEGERS, **stored)
    with pytest.raises(IntegrityError, match="the weights w1 are other integers"):
        check_integers(Artifact(trained, compiled.manifest), compiled)
    shutil.copyfile(compiled.path / INTEGERS, trained / INTEGERS)
    text = (trained / RECORD).read_text("utf-8")
    (trained / RECORD).write_text(text.replace('"zero_point":-128', '"zero_point":-127', 1), "utf-8")
    with pytest.raises(IntegrityError, match="in another range than the one that was trained with"):
        check_integers(Artifact(trained, compiled.manifest), compiled)


def test_integers_have_their_places_and_dense_inputs_one_order_for_all_outputs():
    rng = np.random.default_rng(2)
    kernels, dense = rng.integers(-7, 8, (4, 3, 2, 2)), rng.integers(-7, 8, (6, 4))
    assert _holds(kernels, kernels, 0) and not _holds(kernels, kernels[:, :, :, ::-1], 0)
    assert not _holds(kernels, kernels[:, ::-1], 0) and not _holds(kernels, kernels[::-1], 0)
    assert _holds(dense.T, dense, 1) and _holds(dense.T, dense, None) and _holds(dense, dense, None)
    assert _holds(dense.T[:, rng.permutation(6)], dense, 1)
    assert not _holds(np.stack([row[rng.permutation(6)] for row in dense.T]), dense, 1)


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path, short):
    settings = replace(Settings(), epochs=4)

    def run(stop_after: int, path) -> Fit:
        model = net()
        fit = Fit(Student(model, scheme()), lesson(model), settings, 1e4)

        def report(epoch, planned):
            if epoch.number == stop_after:
                raise KeyboardInterrupt

        fit.run(path, report)
        return fit

    whole = run(99, tmp_path / "whole.npz")
    with pytest.raises(KeyboardInterrupt):
        run(2, tmp_path / "part.npz")
    assert (tmp_path / "part.npz").is_file()
    resumed = run(99, tmp_path / "part.npz")
    assert resumed.history == whole.history and len(whole.history) == 4
    for name, values in whole.best.items():
        assert torch.equal(values, resumed.best[name])
    assert not (tmp_path / "part.npz").exists()
    assert whole.history[-1].loss < whole.history[0].loss


@pytest.mark.parametrize(
    ("losses", "epochs", "kept"),
    [
        ((0.3, 0.2, 0.21, 0.2, 0.22), 5, 5),  # a little above the best: the last weights stay
        ((0.3, 0.2, 0.21, 0.2, 0.3), 5, 2),  # far above: those of the best epoch
        ((0.3, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2), 7, 2),  # five epochs in a row are far above: it stops
    ],
)
def test_the_last_epoch_is_kept_unless_the_held_out_loss_has_risen(losses, epochs, kept, monkeypatch):
    model = net()
    fit = Fit(Student(model, scheme()), lesson(model), Settings(epochs=len(losses)), 1e4)

    def epoch(number: int) -> Epoch:
        for values in fit.student.weights().values():
            values.data.fill_(number + 1)
        return Epoch(number + 1, 0.0, losses[number])

    monkeypatch.setattr(fit, "_epoch", epoch)
    monkeypatch.setattr(fit, "held_out_loss", lambda: 1.0)
    fit.run(None, lambda epoch, planned: None)
    assert len(fit.history) == epochs
    assert {float(values.detach().flatten()[0]) for values in fit.student.weights().values()} == {kept}


@pytest.mark.parametrize(("firsts", "retries"), [((0.9,), 0), ((2.0, 1.5, 0.9), 2), ((9.0, 8.0, 7.0, 6.0), 3)])
def test_a_first_epoch_that_does_harm_is_taken_back_and_repeated_in_smaller_steps(firsts, retries, monkeypatch):
    model = net()
    fit = Fit(Student(model, scheme()), lesson(model), Settings(epochs=1), 1e4)
    before, rate = fit._state(), fit.optimiser.param_groups[0]["first"]
    losses = iter(firsts)

    def epoch(number: int) -> Epoch:
        for name, values in fit._state().items():
            assert torch.equal(values, before[name])
        for values in fit.student.weights().values():
            values.data.fill_(7)
        return Epoch(number + 1, 0.0, next(losses))

    monkeypatch.setattr(fit, "_epoch", epoch)
    monkeypatch.setattr(fit, "held_out_loss", lambda: 1.0)
    fit.run(None, lambda epoch, planned: None)
    assert fit.retries == retries and not list(losses)
    assert fit.optimiser.param_groups[0]["first"] == pytest.approx(rate * 0.25**retries)


def test_a_training_that_was_slowed_down_goes_on_as_slowly(tmp_path):
    model = net()
    fit = Fit(Student(model, scheme()), lesson(model), Settings(epochs=2), 1e4)
    fit._slow_down(2)
    fit.history.append(fit._epoch(0))
    fit._keep(tmp_path / "part.npz")
    again = Fit(Student(model, scheme()), lesson(model), Settings(epochs=2), 1e4)
    again._resume(tmp_path / "part.npz")
    assert again.retries == 2
    assert [g["first"] for g in again.optimiser.param_groups] == [g["first"] for g in fit.optimiser.param_groups]


def test_coarse_weights_move_in_larger_steps():
    mixed = replace(scheme(), weights={**scheme(8).weights, "w3": scheme(2).weights["w3"]})
    fit = Fit(Student(net(), mixed), lesson(net()), Settings(), 1e4)
    sizes = [float(values.detach().pow(2).mean().sqrt()) for values in fit.student.weights().values()]
    rates = dict(zip(fit.student.weights(), (g["first"] for g in fit.optimiser.param_groups), strict=False))
    shares = {name: round(rates[name] / size, 6) for (name, size) in zip(rates, sizes, strict=True)}
    assert shares == {"w1": 0.002, "w2": 0.002, "w3": 0.02, "b1": 0.02, "b2": 0.02, "b3": 0.02}


def test_another_seed_gives_other_weights(short):
    model = net()
    fits = [Fit(Student(model, scheme()), lesson(model), Settings(seed=seed, epochs=1), 1e4) for seed in (0, 0, 1)]
    for fit in fits:
        fit.run(None, lambda epoch, planned: None)
    same, again, other = (fit.best["w1"] for fit in fits)
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_a_loss_that_is_not_a_number_is_an_error():
    model = net()
    taught = lesson(model)
    taught.answers["scores"][10] = float("nan")
    fit = Fit(Student(model, scheme()), taught, Settings(), 1e4)
    with pytest.raises(AccuracyError, match="training: the loss is nan in epoch 1"):
        fit.run(None, lambda epoch, planned: None)


@pytest.mark.parametrize("function", ["Sqrt", "Log"])
def test_functions_that_rise_without_end_at_zero_are_learnt_through(function, short):
    model = net()
    behind = [helper.make_node(function, ["r1"], ["steep"])]
    if function == "Log":
        model.graph.initializer.append(numpy_helper.from_array(np.float32(1e-3), "little"))
        behind = [helper.make_node("Add", ["r1", "little"], ["a1"]), helper.make_node("Log", ["a1"], ["steep"])]
    model.graph.node[2].input[0] = "steep"
    for at, node in enumerate(behind):
        model.graph.node.insert(2 + at, node)
    # The logarithm of what is rounded to zero is infinite, and is stored as the lowest number.
    activations = {**scheme().activations, "a1": Rounding(-128, 127, 0.04, -128), "steep": Rounding(-128, 127, 0.05)}
    fit = Fit(Student(model, replace(scheme(), activations=activations)), lesson(model), Settings(epochs=2), 1e4)
    before = fit._state()
    fit.run(None, lambda epoch, planned: None)
    assert len(fit.history) == 2
    for name, values in fit._state().items():
        assert torch.isfinite(values).all() and not torch.equal(values, before[name]), name


def test_weights_that_end_an_epoch_without_a_held_out_loss_are_never_kept(monkeypatch):
    model = net()
    fit = Fit(Student(model, scheme()), lesson(model), Settings(epochs=3), 1e4)
    losses = iter([float("nan"), 0.9, float("nan")])
    monkeypatch.setattr(fit, "_epoch", lambda number: Epoch(number + 1, 0.0, next(losses)))
    monkeypatch.setattr(fit, "held_out_loss", lambda: 1.0)
    with pytest.raises(AccuracyError, match="training: the loss is nan in epoch 2"):
        fit.run(None, lambda epoch, planned: None)
    assert fit.retries == 1 and [epoch.held_out_loss for epoch in fit.history] == [0.9]


def test_training_is_offered_where_the_gate_is_missed(built, tmp_path):
    _, folder, _ = built
    how = {"weight_bits": 4, "min_sqnr": 90.0, "repair": False, "cache_dir": folder / "cache"}
    result = anynpu.build(net(), "tflite", {"x": samples(40)}, **how)
    (chip,) = result.record.chips
    assert chip.error.exit_status == 7
    assert "or train it: `anynpu build -t tflite --qat`, with the same model, data and options" in chip.error.hint


def test_a_model_that_always_gives_the_same_is_refused_before_it_is_trained(tmp_path):
    model, started = net(), list[str]()
    biases = next(tensor for tensor in model.graph.initializer if tensor.name == "b2")
    biases.CopyFrom(numpy_helper.from_array(np.full(8, -50, np.float32), "b2"))

    class Hearing:
        def started(self, chip: str, stage: str) -> None:
            started.append(stage)

        def progress(self, done: int, total: int) -> None: ...
        def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None: ...
        def said(self, chip: str, stage: str, words: str) -> None: ...

    result = anynpu.build(model, "cpu", {"x": samples(40)}, qat=True, cache_dir=tmp_path, observer=Hearing())
    assert "no use as a reference" in str(result["cpu"].error)
    assert "verify" in started and "train" not in started


def test_interrupted_trainings_are_pruned_when_they_are_old(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "locks").mkdir()
    for name, days in (("old", 40), ("young", 1), ("running", 40)):
        path = tmp_path / "training" / f"{name}.npz"
        path.write_bytes(b"12345")
        os.utime(path, (time.time() - 86400 * days,) * 2)
    with FileLock(tmp_path / "locks" / "running.lock"):
        assert store.drop_trainings(time.time() - 86400 * 30) == (1, 5)
    assert sorted(path.stem for path in (tmp_path / "training").iterdir()) == ["running", "young"]
    store.clear()
    assert not list((tmp_path / "training").iterdir())


@pytest.mark.parametrize("chip", ["tflm", "ethos-u55-128", "cortex-m4"])
def test_chips_without_kernels_for_four_bits_refuse_them(chip, tmp_path):
    given = {"x": samples(20)}
    result = anynpu.build(net(), chip, given, weight_bits=4, cache_dir=tmp_path)
    (came,) = result.record.chips
    assert came.error.exit_status == 3 and "takes 4-bit weights but LiteRT itself" in came.error.message


def test_samples_that_teach_nothing_are_refused():
    with pytest.raises(ConfigError, match="needs at least 16 samples, here are 8"):
        check_samples({"x": samples(8)})
    with pytest.raises(ConfigError, match="all 20 training samples are the same"):
        check_samples({"x": np.ones((20, 2, 6, 6), np.float32)})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.full(80, CLASSES), "labels go from 4 to 4, the output scores has 4 classes"),
        (np.zeros((80, 5)), "not one class for each sample"),
        (np.zeros(80), "not one class for each sample"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, words):
    with pytest.raises(ConfigError, match=words):
        _classes(labels, {"scores": torch.zeros(80, 1, CLASSES)})


def test_classes_are_compared_as_logits_and_as_probabilities():
    """A model that ends in a softmax teaches what the same model without it does."""
    model, taught = net(), lesson(net())
    scores = taught.answers["scores"].reshape(80, CLASSES)
    student = Student(model, scheme())
    plain = Fit(student, taught, Settings(classes=True), 1e4)
    rows = torch.arange(16)
    given = answers_of(student.module, taught.inputs, ("scores",), "cpu")["scores"].reshape(80, CLASSES)
    soft = [torch.softmax(each[rows].double() / 2, 1) for each in (given, scores)]
    expected = 4 * (soft[1] * (soft[1] / soft[0]).log()).sum(1).mean()
    assert float(plain.loss(rows).detach()) == pytest.approx(float(expected), rel=1e-3)
    ended = replace(taught, answers={"scores": torch.softmax(scores, 1).reshape(80, 1, CLASSES)})
    fit = Fit(student, ended, Settings(classes=True), 1e4)
    assert fit.probabilities and not plain.probabilities
    likely = torch.softmax(given, 1)
    assert float(fit.divergence(likely[rows], ended.answers["scores"][rows])) == pytest.approx(
        float(expected), rel=1e-3
    )


def test_labels_are_learnt(short):
    """The labels contradict the float model: only they can move the student there."""
    model = net()
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, CLASSES, 80))
    fit = Fit(Student(model, scheme(8)), lesson(model, labels), Settings(epochs=8, rate=25.0, label_share=1.0), 1e4)

    def right() -> float:
        given = answers_of(fit.student.module, fit.inputs, ("scores",), fit.device)["scores"].reshape(80, CLASSES)
        return float((given.argmax(1).cpu() == labels)[fit.taught].float().mean())

    before = right()
    for number in range(8):
        fit._epoch(number)
    assert right() > before + 0.2


def test_the_student_rounds_as_the_scheme_says():
    """Against the same sums in NumPy, with every weight and activation on its grid."""
    model, how = net(), scheme()
    student = Student(model, how)
    x = samples(3)
    given = answers_of(student.module, {"x": torch.from_numpy(x[:, None])}, ("scores",), "cpu")["scores"]
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for name, rounding in how.weights.items():
        stored[name] = reals(integers(stored[name], rounding), rounding, stored[name])
    import onnxruntime

    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(stored[tensor.name], tensor.name))
    first = model.graph.node[0]
    del model.graph.node[2:]
    first.input[0] = "x"
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("r1", TensorProto.FLOAT, (1, 8, 6, 6)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    grid = np.clip(np.rint(x / np.float32(0.03)), -128, 127).astype(np.float32) * np.float32(0.03)
    inner = np.concatenate([session.run(None, {"x": row[None]})[0] for row in grid])
    inner = np.clip(np.rint(inner / np.float32(0.04)), 0, 255) * np.float32(0.04)
    padded = np.pad(inner, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    second = np.maximum(np.einsum("nchwij,cij->nchw", windows, stored["w2"][:, 0]) + stored["b2"][:, None, None], 0)
    expected = second.reshape(3, -1) @ stored["w3"].T + stored["b3"]
    np.testing.assert_allclose(given.numpy().reshape(3, -1), expected, atol=2e-2)


def test_gradients_pass_the_grid_as_in_torchs_own_quantiser():
    """What is clipped moves the scale, the rest passes; one sample after another or all at once."""
    draw = torch.Generator().manual_seed(4)
    wanted, given, weight = (torch.randn(6, 1, 5, generator=draw) for _ in range(3))
    given.copy_(wanted)
    scales = [torch.tensor([0.03], requires_grad=True), torch.tensor(0.03, requires_grad=True)]
    for each in (wanted, given):
        each.requires_grad_()
    learnt = torch._fake_quantize_learnable_per_tensor_affine(wanted, scales[0], torch.zeros(1), -50, 40, 1.0)
    grid = torch.func.vmap(lambda row: rounded(row, scales[1], -50, 40))(given)
    torch.testing.assert_close(grid, learnt)
    for outputs in (learnt, grid):
        (outputs * weight).sum().backward()
    torch.testing.assert_close(given.grad, wanted.grad)
    torch.testing.assert_close(scales[1].grad.reshape(1), scales[0].grad)
    assert 0 < int((given.grad == 0).sum()) < given.numel(), "some are clipped, some are not"


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ToolMissing, match="training needs torch") as caught:
        require_torch()
    assert caught.value.exit_status == 4 and "anynpu[build]" in caught.value.hint


def test_a_worse_result_is_known_by_the_metric_first():
    def proof(score: float | None, sqnr: float) -> Verification:
        return Verification("", "", "", 1, True, {}, score=score, sqnr_db=sqnr)

    assert _worse(proof(0.8, 20), proof(0.9, 10)) and not _worse(proof(0.9, 10), proof(0.8, 20))
    assert _worse(proof(None, 10), proof(None, 20)) and _worse(proof(0.9, 10), proof(0.9, 20))


def test_large_models_train_on_fewer_samples(monkeypatch):
    model = net()
    monkeypatch.setattr(fitting, "MOST_MACS", 4 * 64 * 3e6)
    fit = Fit(Student(model, scheme()), lesson(model), Settings(), 1e6)
    assert (fit.epochs, fit.steps) == (4, 2)
    assert (Fit(Student(model, scheme()), lesson(model), Settings(), 4e6)).steps == 1


def test_a_step_of_a_large_model_takes_fewer_samples():
    assert [fitting.batch_of(macs) for macs in (0, 1e6, 1e9, 4.4e9, 1e11)] == [32, 32, 10, 2, 1]
    model = net()
    fit = Fit(Student(model, scheme()), lesson(model), Settings(), 4.4e9)
    assert fit.batch == 2 and fit.batch * fit.steps * fit.epochs * 4.4e9 * 3 <= fitting.MOST_MACS


def test_training_starts_with_a_torch_that_fills_no_memory(monkeypatch):
    """torch 2.1 has no `torch.utils.deterministic`."""
    torch = pytest.importorskip("torch")
    monkeypatch.delattr(torch.utils, "deterministic")
    assert prepare_torch(0) is torch
