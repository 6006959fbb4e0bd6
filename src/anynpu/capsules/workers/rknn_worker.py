"""Rockchip's RKNN-Toolkit2 inside its environment: builds a model, writes the .rknn file, and runs its simulator.

The simulator runs the model that this process has built and no other: `build` keeps it, `run` asks it. What the
toolkit prints is its only account of where operators run; it goes to the log, which the other side reads.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import serve  # type: ignore[import-not-found]  # it lies next to this file where this file runs

if TYPE_CHECKING:
    Settings = dict[str, str | int | bool]
    Arrays = dict[str, np.ndarray[Any, Any]]

DATASET = "dataset.txt"
STAGES = 4
_built: list[Any] = []


class Refused(Exception):
    """The toolkit returned a code other than 0, or raised; the message is its own."""


def build(model: str, config: Settings, options: Settings, inputs: list[str], samples: str, out: str) -> None:
    """Builds the ONNX file `model`, writes the .rknn file `out` and makes the simulator ready.

    `samples` is an .npz file with an array `input:NAME` for each of `inputs`, or empty where nothing is quantised.
    """
    from rknn.api import RKNN  # type: ignore[import-not-found]  # the vendor's

    rknn = RKNN(verbose=True)
    _step("config", rknn.config, **config)
    _step("load_onnx", rknn.load_onnx, model=model)
    serve.progress(1, STAGES)
    if samples:
        # One .npy file an input and sample, and the list that names them, whose lines are split at blanks.
        with np.load(samples, allow_pickle=False) as stored:
            arrays = [stored["input:" + name] for name in inputs]
        lines = []
        for at in range(len(arrays[0])):
            files = [f"{at}_{index}.npy" for index in range(len(arrays))]
            for file, array in zip(files, arrays):  # noqa: B905  # one file an array
                np.save(file, array[at : at + 1])
            lines.append(" ".join(files))
        Path(DATASET).write_text("\n".join(lines) + "\n", "utf-8")
        options = {**options, "dataset": DATASET}
    _step("build", rknn.build, do_quantization=bool(samples), **options)
    serve.progress(2, STAGES)
    _step("export_rknn", rknn.export_rknn, out)
    serve.progress(3, STAGES)
    _step("init_runtime", rknn.init_runtime)
    _built[:] = [rknn]
    serve.progress(STAGES, STAGES)


def run(inputs: list[str], outputs: list[str], arrays: Arrays) -> tuple[None, Arrays]:
    """Runs the simulator once; `inputs` and `outputs` are in the order of the model."""
    feeds = [arrays[name] for name in inputs]
    # Of four axes the toolkit takes the last for channels unless told.
    formats = ["nchw" if array.ndim == 4 else None for array in feeds]
    try:
        results = _built[0].inference(inputs=feeds, data_format=formats if any(formats) else None)
    except Exception as error:
        raise Refused(f"inference: {_last(error)}") from error
    finally:
        _flush()
    if results is None or len(results) != len(outputs):
        raise Refused(f"inference gave {0 if results is None else len(results)} outputs, not {len(outputs)}")
    return None, {name: np.asarray(value) for name, value in zip(outputs, results)}  # noqa: B905  # as many


def _step(name: str, function: Any, *arguments: Any, **named: Any) -> None:
    """Calls the toolkit; it reports failure by a code, by an exception whose last line says why, or by both."""
    try:
        code = function(*arguments, **named)
    except Exception as error:
        raise Refused(f"{name}: {_last(error)}") from error
    finally:
        _flush()
    if code != 0:
        raise Refused(f"{name} returned {code}")


def _last(error: Exception) -> str:
    """Returns the last line of an error: the toolkit puts a whole traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _flush() -> None:
    """Brings what the toolkit's C code has printed into the log before anybody reads it there."""
    ctypes.CDLL(None).fflush(None)
