"""Objects of the user's program as the files that a build reads: torch modules, ONNX models, arrays.

They are written to a folder that lasts as long as the call. A module is exported here, by the torch that made it, and
compared with its graph on the user's samples; the build itself needs no torch then.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from anynpu.errors import ConfigError
from anynpu.measure.samples import LABELS
from anynpu.tensors import Array

if TYPE_CHECKING:
    import onnx
    import torch

    from anynpu.source.torch_export import Exported

    Model = str | PathLike[str] | torch.nn.Module | onnx.ModelProto
    """A model: what -m takes, a live module, or an ONNX model."""

Samples = str | PathLike[str] | Array | Mapping[str, Array]
"""Samples: what --data takes, an array whose first axis counts them, or one such array for each input. An entry
`labels` holds their labels."""


@dataclass(frozen=True)
class Named:
    """A model by the name that a build reads it under, and the one that reports show."""

    path: str
    title: str
    notes: tuple[str, ...] = ()


def samples_file(samples: Samples | None, folder: Path, name: str) -> str:
    """Returns what --data would say for these samples; arrays are written to the folder."""
    if samples is None:
        return ""
    if isinstance(samples, str | PathLike):
        return str(samples)
    if isinstance(samples, Mapping):
        path = folder / f"{name}.npz"
        np.savez(path, **{key: _numbers(key, value) for key, value in samples.items()})  # type: ignore[arg-type]
        return str(path)
    path = folder / f"{name}.npy"
    np.save(path, _numbers(name, samples))
    return str(path)


def _numbers(name: str, value: Any) -> Array:
    """Returns an array or a tensor as an array of numbers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" and not (name == LABELS and array.dtype.kind == "U"):
        raise ConfigError(f"{name}: numbers were expected, not {array.dtype}", "give an array, or a mapping of arrays")
    return array


def model_file(
    model: Model,
    folder: Path,
    samples: Samples | None,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    output_names: tuple[str, ...],
) -> Named:
    """Returns the file of a model; a live one is written to the folder."""
    if isinstance(model, str | PathLike):
        return Named(str(model), str(model))
    if _is_a(model, "onnx", "ModelProto"):
        graph = cast("onnx.ModelProto", model)
        return _write(graph, folder, graph.graph.name or "graph")
    if not _is_a(model, "torch.nn", "Module"):
        raise ConfigError(
            f"{type(model).__name__}: not a model",
            "give a path or name as -m takes it, a torch.nn.Module or an onnx.ModelProto",
        )
    module = cast("torch.nn.Module", model)
    arrays = _arrays(samples, module)
    shapes = shapes or {name: (1, *array.shape[1:]) for name, array in arrays.items()}
    if not shapes:
        raise ConfigError(
            "a PyTorch model does not say what its inputs look like", "give shape={'x': (1, 3, 224, 224)}"
        )
    dtypes = {
        name: "float32" if array.dtype.kind == "f" else str(array.dtype)
        for name, array in arrays.items()
        if name in shapes
    } | dict(dtypes)
    exported = _export(module, shapes, dtypes, output_names, arrays)
    named = _write(exported.model, folder, type(module).__name__)
    return replace(named, notes=(*exported.notes, *exported.reads.notes()))


def _is_a(value: object, package: str, name: str) -> bool:
    """Returns whether a value is of a class of a package, which is there if it is."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, getattr(module, name))


def _write(model: onnx.ModelProto, folder: Path, title: str) -> Named:
    import onnx

    stem = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in title)[:80] or "model"
    path = folder / f"{stem}.onnx"
    large = model.ByteSize() >= 2**31 - 1
    onnx.save(model, str(path), save_as_external_data=large)
    return Named(str(path), title)


def _arrays(samples: Samples | None, module: torch.nn.Module) -> dict[str, Array]:
    """Returns the samples by the names of forward's parameters, without labels; none where they lie in files."""
    if samples is None or isinstance(samples, str | PathLike):
        return {}
    if isinstance(samples, Mapping):
        return {name: _numbers(name, value) for name, value in samples.items() if name != LABELS}
    parameters = list(inspect.signature(module.forward).parameters.values())
    if not parameters:
        raise ConfigError(f"{type(module).__name__}.forward takes no input")
    return {parameters[0].name: _numbers("data", samples)}


def _export(
    module: torch.nn.Module,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    output_names: tuple[str, ...],
    arrays: Mapping[str, Array],
) -> Exported:
    """Returns a module with its graph after comparing both on random input and samples; the module stays as it was."""
    from anynpu.graph.agreement import disagreement, spread
    from anynpu.graph.proof import proof_count
    from anynpu.graph.run import Session
    from anynpu.source.torch_export import OPSET, export

    with _on_cpu(module) as copied:
        exported = export(copied, dict(shapes), dtypes, output_names or None, OPSET)
        count = min((len(array) for array in arrays.values()), default=0)
        effort = 8 if exported.reads.places else 1
        places = spread(count, proof_count(exported.model, count, effort)) if count else ()
        feeds = [
            {
                name: (array[at] if array.shape[1:] == shapes.get(name) else array[at : at + 1]).astype(dtypes[name])
                for name, array in arrays.items()
            }
            for at in places
        ]
        if feeds:
            exported.watch(feeds)
            run = Session(exported.model).run
            taken = {value.name for value in exported.model.graph.input}
            names = [value.name for value in exported.model.graph.output]
            difference = disagreement(
                names, exported.run, lambda feed: run({n: v for n, v in feed.items() if n in taken}), feeds
            )
            exported.require_equal(difference)
    return exported


@contextmanager
def _on_cpu(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Gives the module on the CPU: itself, set back to training afterwards where it was, or a copy of one elsewhere."""
    import copy

    if any(tensor.device.type != "cpu" for tensor in (*module.parameters(), *module.buffers())):
        yield copy.deepcopy(module).cpu()
        return
    training = {part: part.training for part in module.modules()}
    try:
        yield module
    finally:
        for part, was in training.items():
            part.training = was
