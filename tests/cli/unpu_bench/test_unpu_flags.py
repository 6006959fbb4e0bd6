"""Every documented flag of µNPU-Bench is accepted and arrives in the right option; what cannot be done is said."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from anynpu import plugins, schema
from anynpu.cli.unpu_bench import gathered, unpu_bench
from anynpu.errors import ConfigError, ToolMissing, Unsupported
from anynpu.pipeline import unpu_bench as bench
from anynpu.pipeline import unpu_flags, unpu_source
from anynpu.pipeline.unpu_flags import FORMATS, INSTEAD, bits, closure, flags, parse_formats, settings

# The tables of µNPU-Bench's README: flag, a value, the option here and its text; None where INSTEAD speaks.
DOCUMENTED = [
    ("ai8x", "qat_policy", "policies/qat.yaml", None, None),
    ("ai8x", "clip_method", "laplace", "ai8x.clip_method", "laplace"),
    ("ai8x", "q_scale", "0.85", "ai8x.q_scale", "0.85"),
    ("ai8x", "config_file", "net.yaml", "ai8x.config_file", "net.yaml"),
    ("ai8x", "compact_weights", True, "ai8x.compact_weights", "true"),
    ("ai8x", "simple1b", True, "ai8x.simple1b", "true"),
    ("ai8x", "no_wfi", True, "ai8x.no_wfi", "true"),
    ("ai8x", "fifo", True, "ai8x.fifo", "true"),
    ("ai8x", "max_speed", True, "ai8x.max_speed", "true"),
    ("ai8x", "zero_sram", True, "ai8x.zero_sram", "true"),
    ("ai8x", "avg_pool_rounding", True, "ai8x.avg_pool_rounding", "true"),
    ("tflm", "tflm_quant_type", "per_tensor", "tflite.weights", "per-tensor"),
    ("tflm", "tflm_quant_type", "per_channel", "tflite.weights", "per-channel"),
    ("tflm", "use_onnxsim", "False", None, None),
    ("tflm", "disable_group_convolution", "True", None, None),
    ("tflm", "enable_batchmatmul_unfold", "True", None, None),
    ("vela", "config_vela", "own.ini", "vela.config", "own.ini"),
    ("vela", "config_vela_system", "Himax_WE2", "vela.system_config", "Himax_WE2"),
    ("vela", "config_vela_system", "internal-default", "vela.system_config", "none"),
    ("vela", "force_symmetric_int_weights", True, "vela.force_symmetric_int_weights", "true"),
    ("vela", "memory_mode", "internal-default", "vela.memory_mode", "none"),
    ("vela", "memory_mode", "Shared_Sram", "vela.memory_mode", "Shared_Sram"),
    ("vela", "tensor_allocator", "HillClimb", "vela.tensor_allocator", "HillClimb"),
    ("vela", "max_block_dependency", "3", "vela.max_block_dependency", "3"),
    ("vela", "arena_cache_size", "400000", "vela.arena_cache_size", "400000"),
    ("vela", "cpu_tensor_alignment", "16", "vela.cpu_tensor_alignment", "16"),
    ("vela", "hillclimb_max_iterations", "99999", "vela.hillclimb_max_iterations", "99999"),
    ("vela", "recursion_limit", "1000", "vela.recursion_limit", "1000"),
    ("vela", "vela_optimise", "Performance", "vela.optimise", "performance"),
    ("vela", "vela_optimise", "Size", "vela.optimise", "size"),
    ("cvi", "calibration_table", "table.txt", "cvi.calibration_table", "table.txt"),
    ("cvi", "tolerance", "0.99", "cvi.tolerance", "0.99"),
    ("cvi", "dynamic", True, "cvi.dynamic", "true"),
    ("cvi", "pixel_format", "RGB", "cvi.pixel_format", "rgb"),
    ("cvi", "resize_dims", "96,96", "cvi.resize_dims", "96,96"),
    ("cvi", "excepts", "conv1,conv2", "cvi.excepts", "conv1,conv2"),
    ("cvi", "keep_aspect_ratio", True, "cvi.keep_aspect_ratio", "true"),
]
COMMON = {
    "target_format": "onnx",
    "target_hardware": "max78000",
    "model": "net.py",
    "model_ckpt": "net.pth",
    "model_name": "net",
    "model_module_name": "Net",
    "model_module_args": "width=8",
    "data_sample": "x.npy",
    "input_names": "input",
    "input_shape": "1",
    "input_layout": "NCHW",
    "output_names": "output",
    "output_shape": "10",
    "bit_width": "8",
    "out_dir": "out",
    "debug": "False",
}


def parsed(*words: str) -> dict[str, object]:
    """Returns what the command makes of a command line, without running it."""
    return unpu_bench.make_context("unpu-bench", list(words)).params


def common(*left_out: str) -> list[str]:
    return [word for name, value in COMMON.items() if name not in left_out for word in (f"--{name}", value)]


@pytest.mark.parametrize(("format", "flag", "value", "option", "text"), DOCUMENTED)
def test_a_documented_flag_is_accepted_and_arrives(format, flag, value, option, text):
    if FORMATS[format].compiler not in plugins.names("targets"):
        pytest.skip(f"no compiler {FORMATS[format].compiler} is registered")
    words = [f"--{flag}"] if value is True else [f"--{flag}", value]
    got = parsed(*common(), *words)[flag]
    assert got is not None and got is not False
    typed = str(got).lower() if isinstance(got, bool) else str(got)
    options, said = settings({flag: typed}, [format])
    if option is None:
        assert options == {} and len(said) == 1 and INSTEAD[flag][1] in said[0]
        return
    assert options == {option: text}
    compiler, _, name = option.partition(".")
    kind = {p.option: p.kind for f in flags().values() for p in f.places if p.compiler == compiler}[name]
    schema.parse_text(kind, text, flag)  # the option's own type takes it


def test_all_common_flags_are_accepted_with_their_documented_defaults():
    given = parsed(*common(), "--overwrite")
    assert given["debug"] is False and given["overwrite"] is True
    bare = parsed(*common("target_hardware", "bit_width", "debug", "input_layout"))
    assert (bare["target_hardware"], bare["bit_width"]) == ("max78000", "8")
    assert not bare["debug"] and not bare["overwrite"]


@pytest.mark.parametrize(
    ("words", "wanted"), [((), True), (("False",), False), (("false",), False), (("True",), True), (("0",), False)]
)
def test_a_truth_value_is_what_it_says(words, wanted):
    assert parsed(*common("debug"), "--debug", *words)["debug"] is wanted
    assert parsed(*common(), "--equalize", *words)["equalize"] is wanted


def test_a_flag_of_a_format_that_is_not_built_is_said_and_not_used():
    options, said = settings({"vela_optimise": "Size", "use_onnxsim": "true"}, ["onnx"])
    assert options == {}
    assert [line.split(" ")[0] for line in said] == ["--vela_optimise", "--use_onnxsim"]
    assert all("not used" in line for line in said)


def test_flags_of_a_format_that_another_needs_are_used():
    assert settings({"tflm_quant_type": "per_tensor"}, ["vela"]) == ({"tflite.weights": "per-tensor"}, [])
    assert closure(["vela"]) == ("onnx", "tflm", "vela")


def test_every_option_behind_a_format_has_a_flag():
    for format in FORMATS.values():
        if format.registered and format.compiler != "cpu":
            for compiler in format.compilers:
                for each in fields(plugins.load("targets", compiler).Options):
                    assert any(p.key == f"{compiler}.{each.name}" for f in flags().values() for p in f.places)
    known = {opt for parameter in unpu_bench.params for opt in parameter.opts}
    assert {f"--{name}" for name in (*flags(), *INSTEAD)} <= known


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--input_shape", "1", "3", "96", "96", "--fifo"], ["--input_shape", "1,3,96,96", "--fifo"]),
        (["--target_format", "onnx,", "tflm", "-q"], ["--target_format", "onnx,,tflm", "-q"]),
        (["--target_format=onnx,tflm"], ["--target_format", "onnx,tflm"]),
        (["--target_format", "onnx", "-q", "--target_format=vela"], ["--target_format", "onnx,vela", "-q"]),
        (
            ["--input_shape", "1", "8", "--input_shape", "1", "4"],
            ["--input_shape", "1,8", "--input_shape", "1,4"],
        ),
        (["--input_names", "--debug"], ["--input_names", "--debug"]),
        (["--model_name", "a", "b"], ["--model_name", "a", "b"]),
    ],
)
def test_lists_are_gathered(words, wanted):
    assert gathered(words) == wanted


def test_formats_are_built_in_the_order_of_their_needs():
    assert parse_formats(["vela", "ONNX", " tflm", "", "vela"]) == ("onnx", "tflm", "vela")
    with pytest.raises(ConfigError, match=r"no such format \(did you mean 'vela'"):
        parse_formats(["velo"])
    with pytest.raises(ConfigError, match="no format"):
        parse_formats([" ", ""])


def test_pairs_of_format_and_hardware():
    found = bench.wanted(("onnx", "tflm", "vela"), ("hxwe2", "ethos-u55-64", "cortex-m4"), True)
    assert [(w.format, w.hardware, w.chip) for w in found] == [
        ("onnx", "all", "cpu"),
        ("tflm", "all", "tflm"),
        ("tflm", "cortex-m4", "cortex-m4"),
        ("vela", "hxwe2", "hxwe2"),
        ("vela", "ethos-u55-64", "ethos-u55-64"),
    ]
    assert found[-1].needs == ("onnx", "tflm")


@pytest.mark.parametrize(
    ("formats", "hardware", "message", "hint"),
    [
        (("vela",), ("cortex-m4",), "vela does not build for cortex-m4", "ethos-u55-64"),
        (("vela",), ("hxwe2", "cortex-m4"), "cortex-m4: vela does not build for it", "onnx, tflm do"),
        (("vela",), ("hxwe3",), "no such chip: hxwe3 .did you mean 'hxwe2'", "anynpu targets"),
    ],
)
def test_a_pair_that_does_not_exist_says_what_does(formats, hardware, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        bench.wanted(formats, hardware, True)
    assert hint in caught.value.hint


def test_ai8x_does_not_build_for_an_ethos_u():
    if not FORMATS["ai8x"].registered:
        pytest.skip("no compiler ai8x is registered")
    with pytest.raises(ConfigError, match="ai8x does not build for hxwe2") as caught:
        bench.wanted(("ai8x",), ("hxwe2",), True)
    assert "max78000" in caught.value.hint


def test_a_format_without_its_compiler_does_not_stop_the_others(monkeypatch):
    monkeypatch.setitem(unpu_flags.FORMATS, "eiq", unpu_flags.Format("eiq", "no-such-compiler", needs=("tflm",)))
    found = bench.wanted(("onnx", "eiq"), ("some-chip",), True)
    assert [(w.format, w.chip) for w in found] == [("onnx", "cpu"), ("eiq", "")]
    assert isinstance(found[1].error, ToolMissing)


@pytest.mark.parametrize(
    ("width", "format", "dtypes", "wanted"),
    [
        ("8", "tflm", (), {"tflite.activations": "int8"}),
        ("16", "vela", ("int8", "int16"), {"tflite.activations": "int16"}),
        ("32", "tflm", (), {"tflite.activations": "float32"}),
        ("4", "onnx", (), {"cpu.activations": "float32"}),
    ],
)
def test_bit_widths(width, format, dtypes, wanted):
    assert bits(width, format, dtypes) == wanted


@pytest.mark.parametrize(("width", "format", "dtypes"), [("4", "tflm", ()), ("32", "vela", ("int8", "int16"))])
def test_a_bit_width_that_a_format_has_not_is_its_own_failure(width, format, dtypes):
    with pytest.raises(Unsupported, match=f"{width} bits") as caught:
        bits(width, format, dtypes)
    assert "--bit_width 8" in caught.value.hint


def test_four_bits_reach_ai8x():
    if not FORMATS["ai8x"].registered:
        pytest.skip("no compiler ai8x is registered")
    assert bits("4", "ai8x") == {"ai8x.bit_width": "4"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("None", {}),
        ("width=8,bias=False,name=net,rate=0.5", {"width": 8, "bias": False, "name": "net", "rate": 0.5}),
        ('{"width": 8, "sizes": "1,2"}', {"width": 8, "sizes": "1,2"}),
        ("{'width': 8, 'bias': True}", {"width": 8, "bias": True}),
    ],
)
def test_arguments_of_the_constructor(text, wanted):
    assert unpu_source.arguments(text) == wanted


@pytest.mark.parametrize("text", ["10", "{width}", "a b=3", "{[1]}"])
def test_arguments_that_cannot_be_read_are_refused(text):
    with pytest.raises(ConfigError, match="model_module_args"):
        unpu_source.arguments(text)


def test_a_model_of_ours_needs_neither_class_nor_checkpoint_and_says_so():
    named = unpu_source.Named("zoo:hello", "Yolov1_net", "", "yolov1.pth.tar")
    source, said = unpu_source.source(named)
    assert source.model == "zoo:hello" and not source.checkpoint
    assert [line.split(":")[0] for line in said] == ["--model_module_name", "--model_ckpt"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "which class"),
        ({"model_module_name": "Net"}, "without a checkpoint"),
        ({"model_module_name": "Net", "model_ckpt": "n.pth"}, "what its inputs look like"),
        (
            {"model_module_name": "Net", "model_ckpt": "n", "input_names": ("a", "b"), "input_shapes": ((1,),)},
            "2 --input_names and 1 --input_shape",
        ),
    ],
)
def test_what_only_the_user_knows_of_a_python_file_is_asked_for(given, message):
    with pytest.raises(ConfigError, match=message):
        unpu_source.source(unpu_source.Named("net.py", **given))


@pytest.mark.parametrize("text", ["1,0,2", "a,b", "", "-1"])
def test_a_bad_shape_is_refused(text):
    with pytest.raises(ConfigError, match="whole numbers above zero"):
        unpu_source.shapes("--input_shape", [text])


def test_a_bad_layout_is_refused():
    assert unpu_source.layouts("nchw,NWC") == ("NCHW", "NWC")
    with pytest.raises(ConfigError, match="no such layout"):
        unpu_source.layouts("NCDHW")


def test_messages_name_the_flags_that_are_here():
    text = "give --data (or --shape NAME=1,3), --ckpt, --trust-checkpoint; -t CHIP; --data-sample and --shapes stay"
    assert unpu_flags.spelled_here(text) == (
        "here --data is --data_sample, --shape is --input_shape, --ckpt is --model_ckpt, "
        "--trust-checkpoint is --trust_checkpoint, -t is --target_hardware"
    )
    assert unpu_flags.spelled_here("none.npy: no such file") == ""


def test_messages_name_options_by_their_flags():
    assert unpu_flags.spelled_here("-O ai8x.q_scale: a number was expected") == "here -O ai8x.q_scale is --q_scale"
    text = "try another -O method=..., or -O activations=int16; -O no.such=1 stays"
    assert unpu_flags.spelled_here(text) == (
        "here -O method=... is --method ..., -O activations=int16 is --bit_width 16"
    )


@pytest.mark.parametrize(
    ("format", "flag"),
    [("ai8x", "clip_method"), ("cvi", "pixel_format"), ("cvi", "resize_dims"), ("cvi", "excepts")],
)
def test_the_documented_default_none_is_the_same_as_no_flag(format, flag):
    assert settings({flag: "None"}, [format]) == ({}, [])


@pytest.mark.parametrize(
    ("format", "flag"), [("ai8x", "config_file"), ("vela", "arena_cache_size"), ("cvi", "calibration_table")]
)
def test_an_option_that_may_be_none_takes_none(format, flag):
    ((option, text),) = settings({flag: "None"}, [format])[0].items()
    kind = {place.key: place.kind for place in flags()[flag].places}[option]
    assert schema.parse_text(kind, text, flag) is None


def test_a_bad_value_and_an_unknown_flag_are_refused():
    for words in (["--bit_width", "7"], ["--debug", "Maybe"], ["--no_such_flag", "1"]):
        with pytest.raises(click.UsageError):
            parsed(*common(words[0][2:]), *words)


PAGE = Path(__file__).parents[3] / "docs" / "unpu-bench.md"


def test_the_page_has_every_flag_with_its_option():
    text = PAGE.read_text("utf-8")
    rows = dict(re.findall(r"^\| `--(\w+)` \| (.+?) \|", text, re.MULTILINE))
    for name, flag in flags().items():
        if name in INSTEAD:
            continue
        assert name in rows, f"--{name} is not in docs/unpu-bench.md"
        for place in flag.places:
            assert f"`{place.key}`" in rows[name], f"--{name}: {place.key} is not said"
    for name, (_, sentence) in INSTEAD.items():
        assert sentence in rows[name], name
    assert set(COMMON) | {"overwrite"} <= set(rows)
