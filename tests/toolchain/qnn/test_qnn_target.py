"""The qnn compiler and session against an onnxruntime-qnn of our own: what is made, what is refused, what is caught."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from fake_qnn import seen, write_tool, xint8_net
from onnx import TensorProto, helper, numpy_helper

from anynpu import plugins
from anynpu.errors import AccuracyError, ConfigError, IntegrityError, ToolFailed, ToolMissing, Unsupported
from anynpu.runtime.ort import OrtSession, inference_session
from anynpu.runtime.qnn import QnnSession
from anynpu.targets.qnn import Qnn
from anynpu.targets.qnn.dense import fuse
from anynpu.testing import conformance, models

CHIP = plugins.platform("snapdragon-x-elite")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("net"))


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Gives a function that installs a fake onnxruntime-qnn."""

    def install(plan="", version="2.7.0"):
        root = write_tool(tmp_path / "qnn", plan, version)
        monkeypatch.setenv("ONNXRUNTIME_QNN_PATH", str(root))
        return root

    return install


@pytest.fixture
def build(net, tmp_path):
    """Gives a function that compiles a model, the small net unless another is given."""

    def compile(model=None, chip=CHIP, **options):
        given = net if model is None else models.artifacts(model, tmp_path)
        return models.compiled(Qnn(), *given, chip, Qnn.Options(**options), tmp_path)

    return compile


def odd_net(*kinds: str) -> onnx.ModelProto:
    """Returns a small net with operators that nobody's NPU takes."""
    names = ["x", *(f"t{i}" for i in range(len(kinds))), "y"]
    nodes = [helper.make_node(kind, [names[i]], [names[i + 1]], name=f"odd{i}") for i, kind in enumerate(kinds)]
    nodes.append(helper.make_node("Relu", [names[-2]], ["y"], name="last"))
    shape = [1, 3, 8, 8]
    sides = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)] for n in ("x", "y")]
    graph = helper.make_graph(nodes, "odd", *sides)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_device_gets_a_context_and_the_session_runs_it(tool, build, net):
    root = tool()
    made = build()
    assert {f.path for f in made.manifest.files} == {
        "model_ctx.onnx",
        "model_ctx_qnn.bin",
        "model.onnx",
        "quantisation.json",
        "calibrated_ranges.json",
    }
    assert made.manifest.main == "model_ctx.onnx"
    assert made.manifest.placement.share == 1.0
    assert {op.kind for op in made.manifest.placement.operators} >= {"Conv", "Gemm"}
    assert made.manifest.details["agreement"]["sqnr_db"] > 100
    session = QnnSession(made)
    given = np.random.default_rng(3).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    got = session.run({"image": given})["scores"]
    session.close()
    wanted = OrtSession(net[0]).run({"image": given})["scores"]
    assert np.abs(got - wanted).max() < 0.06
    for line in seen(root).splitlines():
        assert "session.disable_cpu_ep_fallback" in line
        assert "('htp_arch', '73')" in line and "libQnnHtp.so" in line


@pytest.mark.parametrize(("activations", "dtype"), [("uint8", TensorProto.UINT8), ("uint16", TensorProto.UINT16)])
@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_types_and_scales_are_those_asked_for(tool, build, activations, dtype, weights):
    tool()
    graph = onnx.load(build(activations=activations, weights=weights).path / "model.onnx").graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    kinds = {stored[node.input[2]].data_type for node in graph.node if node.op_type == "QuantizeLinear"}
    assert kinds == {dtype}
    convs = [node for node in graph.node if node.op_type == "Conv"]
    makers = {node.output[0]: node for node in graph.node}
    scales = [len(stored[makers[node.input[1]].input[1]].dims) for node in convs]
    assert set(scales) == ({1} if weights == "per-channel" else {0})


@pytest.mark.parametrize("kind", ["Add", "BatchNormalization"])
def test_dense_layers_are_joined_and_compute_the_same(kind):
    draw = np.random.default_rng(0)
    rest = {"Add": 1, "BatchNormalization": 4}[kind]
    stored = {"w": draw.normal(size=(6, 4)), **{f"c{i}": draw.uniform(0.5, 2, 4) for i in range(rest)}}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="dense"),
        helper.make_node(kind, ["m", *list(stored)[1:]], ["y"], name="after"),
    ]
    sides = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size])] for n, size in (("x", 6), ("y", 4))]
    constants = [onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in stored.items()]
    graph = helper.make_graph(nodes, "dense", *sides, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = {"x": draw.normal(size=(1, 6)).astype(np.float32)}
    before = inference_session(model.SerializeToString()).run(None, given)[0]
    assert fuse(model) == 1 and [n.op_type for n in model.graph.node] == ["Gemm"]
    after = inference_session(model.SerializeToString()).run(None, given)[0]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_weights_of_uint8_have_one_scale():
    with pytest.raises(ConfigError, match="int8 only"):
        Qnn.Options(weight_type="uint8")


@pytest.mark.parametrize("options", [{"agreement_db": float("nan")}, {"time_limit_s": 0}])
def test_a_check_cannot_be_taken_out_by_a_number_that_is_none(options):
    with pytest.raises(ConfigError, match="expected"):
        Qnn.Options(**options)


def test_known_refusals_are_named_before_anything_is_compiled(tool, build):
    root = tool()
    with pytest.raises(Unsupported) as refused:
        build(odd_net("Softsign"))
    assert [f.where for f in refused.value.findings] == ["odd0"] and "Softsign" in refused.value.findings[0].message
    assert not list(root.rglob("seen.txt"))


def test_what_the_compiler_refuses_is_named_and_never_left_to_the_cpu(tool, build, tmp_path):
    tool()
    with pytest.raises(Unsupported, match="does not take the whole model") as refused:
        build(odd_net("Sinh"))
    (finding,) = refused.value.findings
    assert (finding.where, finding.message.split(":")[0]) == ("odd0", "Sinh")
    assert "allow_cpu" in refused.value.hint


def test_an_open_cpu_is_in_the_receipt(tool, build):
    root = tool()
    made = build(odd_net("Softsign", "Abs"), allow_cpu=True)
    (left,) = made.manifest.placement.elsewhere()
    assert (left.name, left.kind) == ("odd0", "Softsign") and left.reason
    assert made.manifest.placement.share < 1
    QnnSession(made).close()
    assert "session.disable_cpu_ep_fallback" not in seen(root)


def test_a_quantised_model_is_taken_as_it_is(tool, build):
    tool()
    model = xint8_net(pool=False)
    made = build(model)
    same = onnx.load(made.path / "model.onnx").graph
    assert [n.op_type for n in same.node] == [n.op_type for n in model.graph.node]
    assert made.manifest.details["as_given"] is True
    assert made.manifest.details["agreement"]["cpu_float_db"] > 15


def test_a_result_that_is_right_on_the_cpu_and_wrong_on_the_npu_is_an_accuracy_error(tool, build):
    tool()
    with pytest.raises(AccuracyError, match=r"the HTP has -\d+\.\d dB and the CPU \d\d\.\d dB") as caught:
        build(xint8_net())
    assert caught.value.got < 0 < caught.value.wanted


def outlier_net() -> onnx.ModelProto:
    """Returns a net that makes one of three channels a thousand times larger, and small again."""
    factors = np.array([1000, 1, 1], np.float32).reshape(1, 3, 1, 1)
    constants = [numpy_helper.from_array(v, n) for n, v in (("up", factors), ("down", 1 / factors))]
    steps = [("Mul", ["x", "up"], ["large"]), ("Relu", ["large"], ["cut"]), ("Mul", ["cut", "down"], ["y"])]
    nodes = [helper.make_node(*step, name=f"step{i}") for i, step in enumerate(steps)]
    sides = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 8, 8])] for n in ("x", "y")]
    graph = helper.make_graph(nodes, "outlier", *sides, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_model_that_is_lost_on_the_cpu_too_is_not_blamed_on_the_npu(tool, build):
    tool("garbage")
    with pytest.raises(AccuracyError, match=r"lost in quantisation, .* the CPU \d\.\d dB") as caught:
        build(outlier_net())
    assert "activations=uint16" in caught.value.hint and caught.value.got < 5


def test_sixteen_bits_hold_what_eight_lose(tool, build):
    tool()
    assert build(outlier_net(), activations="uint16").manifest.details["agreement"]["cpu_float_db"] > 30


@pytest.mark.parametrize(
    ("plan", "error", "words"),
    [
        ("exit", ToolFailed, "status 3"),
        ("crash", ToolFailed, "SIGSEGV"),
        ("hang", ToolFailed, "did not finish within"),
        ("raise", ToolFailed, "graph prepare failed"),
        ("no file", ToolFailed, "wrote no model_ctx.onnx"),
        ("truncated", ToolFailed, "Failed to create context"),
        ("crash at run", ToolFailed, "SIGSEGV"),
        ("garbage", AccuracyError, "something else than ONNX Runtime's CPU"),
    ],
)
def test_every_failure_has_its_error_and_leaves_no_folder(tool, build, tmp_path, plan, error, words):
    tool(plan)
    with pytest.raises(error, match=words) as failure:
        build(**({"time_limit_s": 3} if plan == "hang" else {}))
    if error is ToolFailed:
        assert failure.value.log == str(tmp_path / "log.txt")
    assert not (tmp_path / "artifact" / "worker").exists()


def test_another_version_is_used_and_noted(tool, build):
    tool(version="2.9.1")
    assert any("2.9.1" in note for note in build().manifest.notes)
    assert Qnn().tools()["onnxruntime-qnn"] == "2.9.1"


def test_without_the_tool_the_way_to_get_it_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("ONNXRUNTIME_QNN_PATH", raising=False)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path))
    with pytest.raises(ToolMissing) as missing:
        Qnn().tools()
    assert missing.value.hint == "anynpu tool install qnn"
    assert "anynpu tool install qnn" in QnnSession.missing()


def test_a_changed_context_is_not_opened(tool, build):
    tool()
    made = build()
    path = made.path / "model_ctx_qnn.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="has changed"):
        QnnSession(made)


def test_the_session_keeps_the_rules(tool, build, net, tmp_path):
    tool()
    conformance.check_session(QnnSession, build(), tmp_path / "session", reference=net[0], min_sqnr_db=20)


def test_garbage_ends_the_command_with_status_7_and_a_clean_store(tool, cli, tmp_path):
    tool("garbage later")
    onnx.save(models.conv_net(), tmp_path / "net.onnx")
    cache = tmp_path / "cache"
    arguments = ["-m", "net.onnx", "-t", "hexagon-v73", "--data", "random:40", "-o", "out", "-f", "json"]
    done = cli("build", *arguments, ANYNPU_CACHE_DIR=str(cache))
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout)["chips"][0]["status"] == "AccuracyError"
    assert not list((cache / "scratch").iterdir())


def test_the_xint8_trap_ends_the_command_with_status_7_and_no_artifact(tool, cli, tmp_path):
    tool()
    onnx.save(xint8_net(), tmp_path / "xint8.onnx")
    cache = tmp_path / "cache"
    arguments = ["-m", "xint8.onnx", "-t", "hexagon-v73", "--data", "random:40", "-o", "out"]
    done = cli("build", *arguments, ANYNPU_CACHE_DIR=str(cache))
    assert done.returncode == 7, done.stderr
    assert "the HTP has -" in done.stdout + done.stderr
    assert not list((cache / "scratch").iterdir())
    assert not list((cache / "store").rglob("model_ctx*"))
