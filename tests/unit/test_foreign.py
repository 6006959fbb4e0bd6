"""What other libraries raise, as errors of ours: the libraries themselves are asked."""

from __future__ import annotations

import pytest

from anynpu import foreign
from anynpu.errors import ConfigError, DeviceError, IntegrityError, ToolFailed


def test_an_error_of_ours_passes():
    with pytest.raises(ConfigError, match=r"^as it was$"), foreign.mapped(foreign.ONNX, "the model is odd"):
        raise ConfigError("as it was")


def test_the_first_line_of_a_foreign_error_becomes_the_sentence():
    with pytest.raises(DeviceError) as caught, foreign.mapped(foreign.LITERT, "it failed", DeviceError, "try again"):
        raise RuntimeError("first\nsecond")
    assert (caught.value.message, caught.value.hint) == ("it failed: first", "try again")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_a_library_does_not_raise_is_not_its_own():
    with pytest.raises(KeyError), foreign.mapped(foreign.LITERT, "it failed"):
        raise KeyError("a defect of ours")


def test_the_quantiser_fails_with_its_last_words():
    with pytest.raises(ToolFailed, match="cannot quantise the model: a") as caught, foreign.quantising():
        raise ValueError("a\nb")
    assert caught.value.last_lines == ("a", "b")


def onnx_runtime() -> None:
    import onnxruntime

    onnxruntime.InferenceSession(b"not a model")


def onnx_protobuf() -> None:
    import onnx

    onnx.load_from_string(b"not a model")


def onnx_checker() -> None:
    import onnx

    onnx.checker.check_model(onnx.ModelProto())


def onnx_converter() -> None:
    import onnx

    onnx.version_converter.convert_version(onnx.ModelProto(), 17)


def pillow() -> None:
    import io

    from PIL import Image

    Image.open(io.BytesIO(b"\x89PNG\r\n\x1a\nnot a picture")).load()


def tokenizers() -> None:
    from tokenizers import Tokenizer

    Tokenizer.from_str("not JSON")


def lite_rt() -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter.Interpreter(model_content=b"not a model")


@pytest.mark.parametrize(
    ("library", "call"),
    [
        (foreign.ONNX_RUNTIME, onnx_runtime),
        (foreign.ONNX, onnx_protobuf),
        (foreign.ONNX, onnx_checker),
        (foreign.ONNX, onnx_converter),
        (foreign.PILLOW, pillow),
        (foreign.TOKENIZERS, tokenizers),
        (foreign.LITERT, lite_rt),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_library_raises_what_its_map_says(library, call):
    with pytest.raises(IntegrityError, match=r"^refused: "), foreign.mapped(library, "refused"):
        call()
