"""Random and training operators, exports that are not the module, rewrites that are not the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, ToolFailed, Unsupported
from anynpu.graph import simplify
from anynpu.graph.fold import copied
from anynpu.graph.passes import Pass
from anynpu.graph.run import Session
from anynpu.graph.training import for_inference, require_repeatable
from anynpu.measure.samples import SampleSet, write_samples
from anynpu.source import load
from anynpu.source.original import Original, Proof
from anynpu.targets.zhouyi.options import ZhouyiOptions
from anynpu.targets.zhouyi.rewrite import rewritten

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from anynpu.source.torch_export import OPSET, export  # noqa: E402

FLOAT = TensorProto.FLOAT
TRUE = numpy_helper.from_array(np.array(True), "yes")
RATIO = numpy_helper.from_array(np.array(0.5, np.float32), "ratio")
STATISTICS = [numpy_helper.from_array(np.full(4, v, np.float32), n) for n, v in zip("sbmv", (2, 1, 3, 4), strict=True)]


def graph(nodes, initializers=(), opset=18, inputs=("x",), functions=(), outputs=("y",), width=4) -> onnx.ModelProto:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, [1, 4]) for name in inputs],
        [helper.make_tensor_value_info(name, FLOAT, [1, width]) for name in outputs],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(made, opset_imports=opsets, functions=list(functions), ir_version=8)


def node(kind, inputs, outputs=("y",), name="culprit", **attributes):
    return helper.make_node(kind, list(inputs), list(outputs), name, **attributes)


def branch(name, *nodes):
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("z", FLOAT, None)])


def inside_if():
    noise = node("RandomNormalLike", ["x"], ["n"])
    then = branch("then", noise, node("Add", ["x", "n"], ["z"], "add"))
    other = branch("other", node("Identity", ["x"], ["z"], "same"))
    return graph([node("If", ["yes"], name="if", then_branch=then, else_branch=other)], [TRUE])


def inside_a_function():
    body = [node("RandomUniformLike", ["a"], ["n"]), node("Mul", ["a", "n"], ["b"], "mul")]
    function = helper.make_function("own", "Noise", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    return graph([node("Noise", ["x"], name="call", domain="own")], functions=[function])


RANDOM = {
    "normal-like": lambda: graph([node("RandomNormalLike", ["x"], ["n"]), node("Add", ["x", "n"], name="add")]),
    "normal": lambda: graph([node("RandomNormal", [], ["n"], shape=[1, 4]), node("Add", ["x", "n"], name="add")]),
    "uniform": lambda: graph(
        [node("RandomUniform", [], ["n"], shape=[1, 4], seed=1.0), node("Mul", ["x", "n"], name="mul")]
    ),
    "bernoulli": lambda: graph([node("Bernoulli", ["x"])]),
    "multinomial": lambda: graph(
        [node("Multinomial", ["x"], ["n"], sample_size=2), node("Cast", ["n"], name="cast", to=FLOAT)]
    ),
    "in-a-branch": inside_if,
    "in-a-function": inside_a_function,
    "dropout-switched-at-run-time": lambda: graph(
        [
            node("ReduceMax", ["x"], ["top"], "top", keepdims=0),
            node("Cast", ["top"], ["on"], "cast", to=TensorProto.BOOL),
            node("Dropout", ["x", "ratio", "on"]),
        ],
        [RATIO],
    ),
}


@pytest.mark.parametrize("case", RANDOM)
def test_an_operator_that_draws_random_numbers_is_refused_by_name(case):
    with pytest.raises(Unsupported, match="culprit") as caught:
        for_inference(RANDOM[case]())
    assert caught.value.findings and "evaluation mode" in caught.value.hint


def test_random_numbers_that_nothing_reads_are_no_matter():
    for_inference(graph([node("RandomNormalLike", ["x"], ["n"]), node("Relu", ["x"], name="relu")]))


def five_outputs():
    return graph([node("BatchNormalization", ["x", *"sbmv"], ["y", "a", "c", "d", "e"])], STATISTICS, opset=9)


FROZEN = {
    "dropout": (lambda: graph([node("Dropout", ["x", "ratio", "yes"])], [RATIO, TRUE]), lambda x: x),
    "dropout-of-old": (lambda: graph([node("Dropout", ["x"], ratio=0.5)], opset=6), lambda x: x),
    "batch-norm": (
        lambda: graph([node("BatchNormalization", ["x", *"sbmv"], ["y", "a", "c"], training_mode=1)], STATISTICS),
        lambda x: (x - 3) / np.sqrt(4 + 1e-5) * 2 + 1,
    ),
    "batch-norm-of-five-outputs": (five_outputs, lambda x: (x - 3) / np.sqrt(4 + 1e-5) * 2 + 1),
    "batch-norm-whose-mean-is-read": (
        lambda: graph(
            [
                node("BatchNormalization", ["x", *"sbmv"], ["n", "a", "c"], training_mode=1),
                node("Add", ["n", "a"], name="add"),
            ],
            STATISTICS,
        ),
        lambda x: (x - 3) / np.sqrt(4 + 1e-5) * 2 + 4,
    ),
}


@pytest.mark.parametrize("case", FROZEN)
def test_training_mode_is_set_to_inference_and_said(case):
    make, wanted = FROZEN[case]
    model, notes = for_inference(make())
    assert len(notes) == 1 and "culprit" in notes[0] and "training mode" in notes[0]
    x = np.float32([[-1, 0, 1, 2]])
    (answer,) = Session(model).run({"x": x})
    np.testing.assert_allclose(answer, wanted(x), atol=1e-5)


def test_inference_mode_is_left_alone():
    model = graph([node("BatchNormalization", ["x", *"sbmv"], ["n"]), node("Dropout", ["n"], name="d")], STATISTICS)
    frozen, notes = for_inference(model)
    assert notes == () and frozen.SerializeToString() == model.SerializeToString()


def test_a_graph_that_does_not_repeat_itself_is_refused():
    model = graph([node("RandomNormalLike", ["x"], ["n"]), node("Add", ["x", "n"], name="add")])
    with pytest.raises(Unsupported, match="the same input is run twice"):
        require_repeatable(model)


class Net(nn.Module):
    """A layer, and what a test does around it."""

    def __init__(self, around):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.drop, self.calls = nn.Linear(8, 4), nn.Dropout(0.5), 0
        self.register_buffer("memory", torch.zeros(1, 4))
        self.kept, self.first = {}, None
        self.around = around

    def forward(self, x):
        return self.around(self, x)


def counting(net, x):
    net.calls += 1
    return net.layer(x) + (1.0 if net.calls > 20 else 0.0)


def remembering(net, x):
    net.memory.mul_(0.9).add_(net.layer(x))
    return net.memory.clone()


def first_answer(net, x):
    if net.first is None:
        net.first = net.layer(x)
    return net.layer(x) + net.first


def last_answer(net, x):
    before, net.first = net.first, net.layer(x)
    return net.layer(x) if before is None else net.layer(x) + before


def scaled_by_the_first(net, x):
    net.kept.setdefault("scale", float(x.abs().max()))
    return net.layer(x / net.kept["scale"])


def in_a_private_attribute(net, x):
    if not hasattr(net, "_mean"):
        net._mean = x.mean()
    return net.layer(x - net._mean)


REMEMBERED = {
    "first-answer": (first_answer, "forward keeps first"),
    "last-answer": (last_answer, "forward keeps first"),
    "scale-of-the-first-input": (scaled_by_the_first, "forward keeps kept"),
    "private-attribute": (in_a_private_attribute, "forward keeps _mean"),
}


@pytest.mark.parametrize("case", REMEMBERED)
def test_a_module_that_keeps_its_first_input_is_refused_by_name(case):
    around, words = REMEMBERED[case]
    with pytest.raises(ConfigError, match=f"inputs that it was given before, of which {words}"):
        exported(around)


def exported(around):
    return export(Net(around), {"x": (1, 8)}, {"x": "float32"}, ["y"], OPSET)


MODULES = {
    "torch-rand": (lambda net, x: net.layer(x) + torch.rand(1), "Net draws random numbers"),
    "small-noise": (lambda net, x: net.layer(x) + 1e-5 * torch.rand(1), "Net draws random numbers"),
    "functional-dropout": (lambda net, x: net.layer(F.dropout(x)), "Net draws random numbers"),
    "numpy-random": (lambda net, x: net.layer(x) * float(np.random.rand()), "draws random numbers"),
    "rare-random": (lambda net, x: net.layer(x) * (2 if torch.rand(1) > 0.6 else 1), "draws random numbers"),
    "generator-without-a-seed": (
        lambda net, x: net.layer(x) * float(np.random.default_rng().random()),
        "different results for the same input",
    ),
    "state-in-a-buffer": (remembering, "forward changes its own memory"),
}


@pytest.mark.parametrize("case", MODULES)
def test_a_module_that_does_not_repeat_itself_is_refused_by_name(case):
    around, words = MODULES[case]
    with pytest.raises(ConfigError, match=words):
        exported(around)


def test_dropout_that_eval_does_not_reach_is_set_to_inference_and_said():
    class Stuck(Net):
        def train(self, mode=True):
            return super().train(True)

    module = Stuck(lambda net, x: net.layer(net.drop(x)))
    made = export(module, {"x": (1, 8)}, {"x": "float32"}, ["y"], OPSET)
    assert "drop (Dropout)" in made.notes[0] and "set to inference" in made.notes[0]


def proved(around, tmp_path: Path, samples: np.ndarray) -> Proof:
    """Exports a module and proves the graph on samples, as an import does."""
    made = exported(around)
    write_samples(tmp_path, SampleSet({"x": samples.astype(np.float32)}))
    return Original(made.model, made.notes, made).prove(made.model, [str(tmp_path)])


def in_an_exception(net, x):
    try:
        if x.max() > 1.7:
            raise ValueError("too large")
        return net.layer(x)
    except ValueError:
        return -net.layer(x)


SAMPLES = np.random.default_rng(3).normal(0.4, 0.5, (64, 8))
BRANCHES = {
    "branch": lambda net, x: net.layer(x) * 2 if x.mean() > 0.5 else net.layer(x),
    "rare-branch": lambda net, x: -net.layer(x) if x.max() > 1.9 else net.layer(x),
    "item": lambda net, x: net.layer(x) * (1 + max(0.0, x.max().item() - 1.5)),
    "tolist": lambda net, x: net.layer(x) * (1 + sum(v > 1.6 for v in x[0].tolist())),
    "numpy": lambda net, x: net.layer(x) + float(np.maximum(x.numpy() - 1.7, 0).sum()),
    "int": lambda net, x: net.layer(x) * (1 + int(x.max() > 1.7)),
    "where-with-a-python-bool": lambda net, x: torch.where(torch.tensor(bool(x.max() > 1.7)), net.layer(x), x[:, :4]),
    "range": lambda net, x: net.layer(x) + sum(0.1 for _ in range(int(x[0, 0].abs() * 2))),
    "exception": in_an_exception,
    "dictionary": lambda net, x: net.layer(x) * {0: 1.0, 1: 2.0}.get(int(x.max().round().item()), 3.0),
    "array-protocol": lambda net, x: net.layer(x) + float(np.asarray(x).max()),
    "length-of-a-selection": lambda net, x: net.layer(x) * len(x[x > 0.5]),
    "number-of-distinct-values": lambda net, x: net.layer(x) * len(torch.unique(x.round())),
    "sorted": lambda net, x: net.layer(torch.tensor([sorted(x[0].tolist())])),
    "largest-by-python": lambda net, x: net.layer(x) + max(x[0]),
}


@pytest.mark.parametrize("case", BRANCHES)
def test_a_graph_that_is_not_the_module_on_the_users_samples_is_refused(case, tmp_path):
    # The random inputs of the export do not reach the other branch; the samples do.
    quiet = BRANCHES[case]
    with pytest.raises(Unsupported, match=r"of (64|1) samples by up to .*test_source_exports.py, line \d+"):
        proved(quiet, tmp_path, SAMPLES)


def test_a_counter_that_shows_after_some_samples_is_refused(tmp_path):
    with pytest.raises(Unsupported, match=r"of 64 samples .*changes its own calls"):
        proved(counting, tmp_path, SAMPLES)


def test_values_that_forward_reads_without_effect_are_said(tmp_path):
    def checked(net, x):
        assert x.abs().max() < 100
        return net.layer(x)

    proof = proved(checked, tmp_path, SAMPLES)
    assert proof.compared == proof.samples == 64
    assert "test_source_exports.py, line" in proof.notes[0] and "a branch on values" in proof.notes[0]


def test_shapes_and_weights_that_forward_reads_are_no_matter(tmp_path):
    def shaped(net, x):
        scale = 2.0 if net.memory.sum() == 0 else 1.0
        return net.layer(x.reshape(x.shape[0], -1) if x.shape[-1] > 3 else x) * scale

    assert proved(shaped, tmp_path, SAMPLES).notes == ()


def keeping_the_shape(net, x):
    return net.layer(x + net.kept.setdefault(tuple(x.shape), torch.ones_like(x)))


def keeping_the_answer(net, x):
    net.first = net.layer(x).softmax(-1)
    return net.first * 2


def in_no_grad(net, x):
    with torch.no_grad():
        return net.layer(x)


def shown(net, x):
    print(x)
    return net.layer(x) if f"{x.mean():.2f}" else x


def zeros_of_the_shape(net, x):
    return net.layer(x) * (2.0 if float(torch.zeros_like(x).sum()) == 0 else 1.0)


HARMLESS = {
    "cache-by-shape": keeping_the_shape,
    "attention-kept-to-look-at": keeping_the_answer,
    "no-grad": in_no_grad,
    "printed": shown,
    "zeros-like-the-input": zeros_of_the_shape,
    "selection-by-mask": lambda net, x: net.layer(x) + x[x > 0].sum(),
    "count-of-a-selection": lambda net, x: net.layer(x) * torch.nonzero(x > 0).shape[0],
    "index-by-tensor": lambda net, x: net.layer(x) + x[0, x.argmax()],
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_a_graph_can_do_too_is_no_matter(case, tmp_path):
    proof = proved(HARMLESS[case], tmp_path, SAMPLES)
    assert proof.compared == 64 and proof.notes == ()


def test_hooks_and_lazy_parts_are_no_matter(tmp_path):
    module = Net(lambda net, x: net.layer(x) + net.lazy(x))
    module.lazy = nn.LazyLinear(4)
    module.layer.register_forward_hook(lambda part, arguments, result: result * 2)
    made = export(module, {"x": (1, 8)}, {"x": "float32"}, ["y"], OPSET)
    write_samples(tmp_path, SampleSet({"x": SAMPLES.astype(np.float32)}))
    proof = Original(made.model, made.notes, made).prove(made.model, [str(tmp_path)])
    assert proof.compared == 64 and not made.notes and not proof.notes


def test_without_samples_random_inputs_of_many_scales_look_for_branches():
    made = exported(lambda net, x: net.layer(x) if x.abs().max() < 9 else net.layer(x) * 0)
    with pytest.raises(Unsupported, match="differs from the module"):
        Original(made.model, (), made).prove(made.model, [])


def test_a_simplification_is_proved_on_all_samples(tmp_path, monkeypatch):
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32), "w")
    model = graph([node("Relu", ["x"], ["r"], "relu"), node("MatMul", ["r", "w"], name="mul")], [weights], width=3)
    onnx.save(model, str(tmp_path / "net.onnx"))

    def without_relu(model):
        shorter = copied(model)
        shorter.graph.node[1].input[0] = "x"
        return shorter, 1

    own = (*simplify.SIMPLIFYING, Pass("liar", "Relu goes", without_relu))
    monkeypatch.setattr(simplify, "SIMPLIFYING", own)
    monkeypatch.setattr(simplify, "random_feeds", lambda model, seed: {"x": np.ones((1, 4), np.float32)})
    samples = np.ones((32, 4), np.float32)
    samples[8:] *= -1
    write_samples(tmp_path, SampleSet({"x": samples}))
    source = load.ModelSource(str(tmp_path / "net.onnx"))
    manifest = load._imported(source, str(tmp_path), None, lambda inputs: [str(tmp_path)]).manifest
    effects = {each.name: each for each in manifest.passes}
    changed = "it would change output 'y' on 24 of 32 samples"
    assert effects["liar"].dropped.startswith(changed) and not effects["fold"].dropped
    assert manifest.notes[0].startswith(f"the pass liar was left out, {changed}")
    made = onnx.load(tmp_path / "model.onnx")
    assert [each.op_type for each in made.graph.node] == ["Relu", "MatMul"]
    assert np.array_equal(Session(made).run({"x": samples[8:9]})[0], np.zeros((1, 3), np.float32))


def test_a_mask_rewrite_is_proved_on_all_samples():
    low = np.zeros((1, 4, 4), np.float32)
    low[:, :, 3] = -1e9
    nodes = [
        node("Mul", ["x", "eight"], ["scores"], "scores"),
        node("Add", ["scores", "m"], ["masked"], "add"),
        node("Softmax", ["masked"], name="softmax", axis=-1),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [1, 4, 4])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 4, 4])],
        [numpy_helper.from_array(low, "m"), numpy_helper.from_array(np.float32(8), "eight")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = np.random.default_rng(0).normal(0, 0.1, (32, 1, 4, 4)).astype(np.float32)
    _, quiet, _ = rewritten(model, ZhouyiOptions(), [{"x": sample} for sample in samples])
    assert quiet == ("constants of attention masks became -30: 1",)
    samples[8:, :, :, 3] += 5  # scores of 40: a mask of -30 no longer hides them
    kept, notes, _ = rewritten(model, ZhouyiOptions(), [{"x": sample} for sample in samples])
    assert kept is model and "left alone" in notes[0] and "24 of 32 samples" in notes[0]


def test_values_far_below_the_outputs_precision_raise_no_alarm(tmp_path):
    # One sample's outputs are all rounding: 1e-12 beside a zero, where the output reaches 100 elsewhere.
    model = graph([node("Mul", ["x", "big"], name="mul")], [numpy_helper.from_array(np.float32(100), "big")])
    other = graph(
        [node("Mul", ["x", "big"], ["p"], "mul"), node("Add", ["p", "tiny"], name="add")],
        [numpy_helper.from_array(np.float32(100), "big"), numpy_helper.from_array(np.float32(1e-12), "tiny")],
    )
    write_samples(tmp_path, SampleSet({"x": np.float32([[0, 0, 0, 0], [1, 2, 3, 4]])}))
    assert Original(model, ()).prove(other, [str(tmp_path)]).compared == 2


def test_a_build_says_what_it_froze(tmp_path, cli):
    model = graph([node("Dropout", ["x", "ratio", "yes"], ["d"]), node("Relu", ["d"], name="relu")], [RATIO, TRUE])
    onnx.save(model, str(tmp_path / "net.onnx"))
    done = cli("build", "-m", "net.onnx", "-t", "null", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "culprit: Dropout was in training mode" in done.stdout
    assert isinstance(Artifact.open(tmp_path / "out" / "float"), Artifact)
    shown = cli("show", "out/null")
    assert "note         culprit: Dropout was in training mode" in shown.stdout, shown.stderr
    (tmp_path / "out" / "report.json").write_text('{"kind": "build"}')
    shown = cli("show", "out/null")
    assert shown.returncode == 0 and "report.json: schema_version: is missing" in shown.stdout, shown.stderr


def before_two_exporters(export_now):
    """Returns torch.onnx.export as torch 2.1 declares it: tracing, and no word of another exporter."""

    def older(
        model, args, f, export_params=True, verbose=False, training=torch.onnx.TrainingMode.EVAL, input_names=None,
        output_names=None, operator_export_type=None, opset_version=None, do_constant_folding=True, dynamic_axes=None,
        keep_initializers_as_inputs=None, custom_opsets=None, export_modules_as_functions=False, autograd_inlining=True,
    ):  # fmt: skip
        settings = {"training": training, "input_names": input_names, "output_names": output_names}
        settings |= {"opset_version": opset_version, "do_constant_folding": do_constant_folding}
        return export_now(model, args, f, dynamo=False, **settings)

    return older


def test_a_module_is_exported_by_a_torch_that_traces_alone(monkeypatch):
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    now = export(module, {"x": (1, 4)}, {"x": "float32"}, None, OPSET)
    monkeypatch.setattr(torch.onnx, "export", before_two_exporters(torch.onnx.export))
    monkeypatch.delattr(torch.backends, "mha")
    older = export(module, {"x": (1, 4)}, {"x": "float32"}, None, OPSET)
    assert older.model.SerializeToString() == now.model.SerializeToString()


def test_a_module_that_tracing_cannot_take_is_refused_by_such_a_torch(monkeypatch):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    monkeypatch.setattr(torch.onnx, "export", before_two_exporters(torch.onnx.export))
    with pytest.raises(ToolFailed, match=r"cannot export the module: .*bessel_j0"):
        export(Odd(), {"x": (1, 4)}, {"x": "float32"}, None, OPSET)
