"""What the compiler's files say: where operators run, which tensor is which, and the time nobody wants in them."""

from __future__ import annotations

import hashlib
import struct

import pytest

from anynpu.errors import IntegrityError
from anynpu.targets.cvi.made import estimates, input_spec, output_spec, pair
from anynpu.targets.cvi.mlir import operations
from anynpu.targets.cvi.model_file import settle
from anynpu.tensors import StoredTensor, TensorSpec

FINAL = """\
module @model attributes {module.chip = "cv180x"} {
    func.func @main(%arg0: tensor<1x3x32x32xf32> loc(unknown)) -> tensor<1x10xf32> {
      %1 = call @subfunc_0(%0) : (x) -> y loc(#loc)
    func.func @subfunc_0(%arg0: x loc("image")) -> y attributes {id = 0 : i64, mode = #tpu<run_mode CPU>} {
      %0 = "tpu.GenericCpu"(%arg0) {cpu_op_name = "quant", param = {to = "INT8"}} : (x) -> y loc(#loc2)
    func.func @subfunc_1(%arg0: x loc("image_si8")) -> y attributes {id = 1, mode = #tpu<run_mode TPU_STATIC>} {
      %2 = "tpu.Group"(%arg0) ({
        %3 = "tpu.Load"(%arg0) {do_bcast = false} : (x) -> y loc(#loc3)
        %4 = "tpu.Conv2D"(%3, %1) {dilations = [1, 1]} : (x) -> y loc(#loc4)
      %5:2 = "tpu.Split"(%4) {axis = 1} : (x) -> y loc(#loc5)
#loc = loc(unknown)
#loc2 = loc("image_si8")
#loc3 = loc("load_0")
#loc4 = loc("/a/Conv_output_0_Conv")
#loc6 = loc("left_Split")
#loc5 = loc(fused[#loc6, "right_Split"])
"""


def test_operators_are_read_with_their_place_and_names():
    assert [(op.kind, op.names, op.on_tpu) for op in operations(FINAL)] == [
        ("quant", ("image_si8",), False),
        ("Conv2D", ("/a/Conv_output_0_Conv",), True),
        ("Split", ("left_Split", "right_Split"), True),
    ]


def test_a_file_that_says_no_place_is_refused():
    with pytest.raises(IntegrityError, match="no operator"):
        operations("module {}")
    with pytest.raises(IntegrityError, match="does not say where Conv2D runs"):
        operations('%4 = "tpu.Conv2D"(%3) {a = 1} : x loc("y")')


def tensor(name, shape=(1, 4), dtype="i8", scale=2.0, zero_point=0):
    return StoredTensor(name, dtype, tuple(shape), scale, zero_point)


def test_outputs_are_found_by_name_whatever_their_order():
    asked = [TensorSpec("y", (1, 4)), TensorSpec("y_1", (1, 4)), TensorSpec("z", (1, 4))]
    found = pair([tensor("renamed"), tensor("y_1_Add_f32"), tensor("y_Conv")], asked)
    assert {name: t.name for name, t in found.items()} == {"y": "y_Conv", "y_1": "y_1_Add_f32", "z": "renamed"}


@pytest.mark.parametrize("made", [[], [tensor("y", (1, 5))]])
def test_tensors_that_do_not_fit_are_refused(made):
    with pytest.raises(IntegrityError):
        pair(made, [TensorSpec("y", (1, 4))])


def test_the_scale_of_an_input_multiplies_and_that_of_an_output_is_ours():
    spec = TensorSpec("x", (1, 4))
    assert input_spec(spec, tensor("x", scale=4.0, zero_point=3)).quantization.scale == (0.25,)
    assert input_spec(spec, tensor("x", scale=4.0, zero_point=3)).quantization.zero_point == (3,)
    assert output_spec(spec, tensor("x", scale=4.0)).quantization.scale == (4.0,)
    assert output_spec(spec, tensor("x", dtype="f32")).quantization is None
    assert input_spec(TensorSpec("ids", (1, 4), "int64"), tensor("ids", dtype="i32")).dtype == "int32"


@pytest.mark.parametrize("wrong", [tensor("x", dtype="bf16"), tensor("x", scale=0.0)])
def test_what_cannot_be_stored_is_refused(wrong):
    with pytest.raises(IntegrityError):
        output_spec(TensorSpec("x", (1, 4)), wrong)


def cvimodel(text, chip=b"cv180x"):
    head = struct.pack("<8sIBB16s16s2s", b"CviModel", len(text), 1, 4, hashlib.md5(text).digest(), chip, b"Cv")
    return head + text


def test_two_builds_of_one_model_are_one_file(tmp_path):
    for index, time in enumerate((b"2026-11-15 08:52:09", b"2027-01-02 03:04:05")):
        (tmp_path / f"{index}.cvimodel").write_bytes(cvimodel(b"v1.30.2 " + time + b" weights"))
        settle(tmp_path / f"{index}.cvimodel", "cv180x")
    first, second = ((tmp_path / f"{i}.cvimodel").read_bytes() for i in range(2))
    assert first == second == cvimodel(b"v1.30.2 2000-01-01 00:00:00 weights")


def test_two_builds_of_one_bmodel_are_one_file(tmp_path):
    text = b"v1.30.2 Sun Nov 15 08:51:30 2026 net"
    path = tmp_path / "m.bmodel"
    path.write_bytes(struct.pack("<IIIQ", 0xFF55AAEE, 64, len(text), 3).ljust(64, b"\0") + text + b"abc")
    settle(path, "bm1684x")
    assert b"Sat Jan  1 00:00:00 2000" in path.read_bytes()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="cut short"):
        settle(path, "bm1684x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a cvimodel"),
        (cvimodel(b"weights")[:-2], "cut short"),
        (cvimodel(b"weights", b"cv183x"), "for cv183x, not cv180x"),
    ],
)
def test_a_damaged_cvimodel_is_refused(tmp_path, content, words):
    (tmp_path / "m.cvimodel").write_bytes(content)
    with pytest.raises(IntegrityError, match=words):
        settle(tmp_path / "m.cvimodel", "cv180x")


def test_estimates_are_the_compilers_where_it_gives_some(tmp_path):
    (tmp_path / "m").write_bytes(bytes(7))
    for index, cycles in enumerate((9454, 46)):
        text = f"TCYC : {cycles}\nflops: 25195786, runtime: {cycles / 1e6}ms, ComputationAbility: 2.6T\n"
        (tmp_path / f"p{index}").write_text(text)
    found = estimates(None, tmp_path / "m", [tmp_path / "p0", tmp_path / "p1"])
    assert (found.flash_bytes, found.cycles) == (7, 9500)
    assert found.latency_ms == pytest.approx(0.0095)
    assert estimates(None, tmp_path / "m", []).latency_ms is None
