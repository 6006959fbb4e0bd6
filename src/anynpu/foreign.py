"""Where the exceptions of other libraries become ours: what each of them raises stands here, once.

    with mapped(ONNX_RUNTIME, "ONNX Runtime refuses the model"):
        return onnxruntime.InferenceSession(path)

Where a failure is an answer, or a call must cost nothing, `except foreign.ONNX_RUNTIME:` names the same classes. What a
file reader of our own raises is mapped next to it (`tflite_file.damage_reported`, `vectors.edge.engine`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from anynpu.errors import AnyNpuError, IntegrityError, ToolFailed, first_line

Raised: TypeAlias = tuple[type[Exception], ...]

ONNX: Raised = (Exception,)
"""onnx and onnx-ir: protobuf's errors, those of checker, converter, shape inference and reference evaluator, and
whatever their C++ raises have nothing but Exception in common."""
ONNX_RUNTIME: Raised = (Exception,)
"""A dozen unrelated classes of its binding; its quantiser raises whatever it meets."""
LITERT: Raised = (ValueError, RuntimeError)
TFLITE_MICRO: Raised = (RuntimeError, ValueError, struct.error)
TOKENIZERS: Raised = (Exception,)
"""Plain Exception, whatever is wrong."""
PILLOW: Raised = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, MemoryError, RuntimeError),
    *(AttributeError, struct.error, zlib.error),
)
"""What its readers raise where the bytes are not what they should be."""
NUMPY_FILES: Raised = (Exception,)
"""A damaged header raises a dozen unrelated classes of numpy, zipfile and zlib."""


@contextmanager
def mapped(
    library: Raised, words: str, kind: Callable[..., AnyNpuError] = IntegrityError, hint: str = ""
) -> Iterator[None]:
    """Turns what a library raises in the block into an error of ours: `words`, and the first line of what it says."""
    try:
        yield
    except AnyNpuError:
        raise
    except library as error:
        raise kind(f"{words}: {first_line(error)}", hint=hint) from error


@contextmanager
def quantising() -> Iterator[None]:
    """Turns what ONNX Runtime's quantiser raises in the block into a ToolFailed with the last of its words."""
    try:
        yield
    except ONNX_RUNTIME as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ToolFailed(f"onnxruntime cannot quantise the model: {lines[0]}", last_lines=lines[-20:]) from error
