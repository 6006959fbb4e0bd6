"""Torch modules as ONNX models: static shapes, named inputs and outputs, weights inside, checked by execution."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx

from anynpu.errors import ConfigError, Finding, IntegrityError, ToolFailed, Unsupported
from anynpu.graph.agreement import Disagreement, disagreement
from anynpu.graph.run import Session
from anynpu.graph.training import for_inference
from anynpu.source.torch_arrays import to_array
from anynpu.source.torch_forward import ModuleRun, Reads, Unused, require_repeatable, set_to_inference
from anynpu.tensors import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OPSET = 18
WATCHED = 4
DTYPES = ("float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


@dataclass(frozen=True)
class Exported:
    """The ONNX model of a module, the module itself to compare with, and what forward does that a graph cannot."""

    model: onnx.ModelProto
    run: ModuleRun
    notes: tuple[str, ...]
    reads: Reads

    def watch(self, feeds: Sequence[Mapping[str, Array]]) -> None:
        """Runs the module on a few samples and records what values it reads there."""
        with self.reads.watching(self.run.module):
            for feed in feeds[:WATCHED]:
                self.run(feed)

    def require_equal(self, difference: Disagreement | None) -> None:
        """Raises where the graph and the module differ: on the module where it reads values, else on the exporter."""
        if difference is None:
            return
        message = f"the exported ONNX model differs from the module: {difference}"
        if places := {**self.reads.places, **self.reads.sizes}:
            place, what = next(iter(places.items()))
            raise Unsupported(
                f"{message}; forward reads values of its input in {place} ({what}), and a graph has one fixed path",
                [Finding("reads-values", note) for note in self.reads.notes()],
                "write the choice with torch.where, or split the module where it branches",
            )
        if self.notes:
            raise Unsupported(
                f"{message}; {self.notes[-1]}", hint="give what forward keeps between calls as an input and an output"
            )
        raise ToolFailed(
            message,
            argv=("torch.onnx.export",),
            hint="a forward that keeps anything between calls has no graph; otherwise export the model to ONNX "
            "yourself and compare it",
        )


def export(
    module: torch.nn.Module,
    inputs: Mapping[str, tuple[int, ...]],
    input_dtypes: Mapping[str, str],
    output_names: Sequence[str] | None,
    opset: int,
) -> Exported:
    """Returns the ONNX model of a module after comparing both on random input."""
    names = _ordered(module, list(inputs))
    trace, probe = (_samples(names, inputs, input_dtypes, seed) for seed in (0, 1))
    notes = set_to_inference(module)
    hook = module.register_forward_hook(_flat)
    reads, unused = Reads(), Unused.of(module)
    try:
        with reads.watching(module):
            _, keys = _forward(module, trace, inputs)
            outputs, _ = _forward(module, probe, inputs)
        notes += require_repeatable(module, lambda: _forward(module, probe, inputs)[0])
        unused.require_same(module, lambda each: _forward(each, probe, inputs)[0])
        outs = keys if output_names is None else [*output_names, *keys[len(output_names) :]]
        if output_names is not None and (len(output_names) > len(keys) or len({*outs}) != len(outs)):
            raise ConfigError(f"{len(output_names)} output names are given, the module returns {len(keys)} tensors")
        model = _exported(module, trace, names, outs, opset)
    finally:
        hook.remove()
    for item, output in zip(model.graph.output, outputs, strict=True):
        shape = item.type.tensor_type.shape
        del shape.dim[:]
        for size in output.shape:
            shape.dim.add().dim_value = size
    feeds = {name: to_array(tensor) for name, tensor in zip(names, probe, strict=True)}
    exported = Exported(model, ModuleRun(module, tuple(names), feeds, _quiet), notes, reads)
    exported.require_equal(disagreement(outs, exported.run, _session(model), [feeds]))
    return exported


def _ordered(module: torch.nn.Module, names: list[str]) -> list[str]:
    """Returns the input names in the order of forward's parameters if they are its parameters, else as given."""
    if not names:
        raise ConfigError("the module needs at least one input shape", "give the name and shape of every input")
    parameters = inspect.signature(module.forward).parameters
    if not set(names) <= set(parameters):
        return names
    ordered = [name for name in parameters if name in names]
    skipped = [name for name in list(parameters)[: len(ordered)] if name not in names]
    if skipped:
        raise ConfigError(f"forward takes {skipped[0]!r} before {ordered[-1]!r}; it has no shape", "give its shape too")
    return ordered


def _samples(
    names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], seed: int
) -> tuple[Tensor, ...]:
    import torch

    random = torch.Generator().manual_seed(seed)
    samples = []
    for name in names:
        kind = dtypes.get(name, "float32")
        if kind not in DTYPES:
            raise ConfigError(f"input {name!r} has the unknown type {kind!r}", f"use one of {', '.join(DTYPES)}")
        dtype = getattr(torch, kind)
        if dtype.is_floating_point:
            samples.append(torch.randn(tuple(shapes[name]), generator=random).to(dtype))
        else:  # zeros and ones are valid as token numbers, masks and flags alike
            samples.append(torch.randint(0, 2, tuple(shapes[name]), generator=random).to(dtype))
    return tuple(samples)


def _flat(module: torch.nn.Module, arguments: Any, result: Any) -> Any:
    """Turns a dictionary of results into a tuple, as a forward hook; the names are kept aside by _forward."""
    if isinstance(result, Mapping):
        module.__dict__["_anynpu_keys"] = [str(key) for key in result]
        return tuple(result.values())
    return tuple(result) if isinstance(result, list) else result


def _forward(
    module: torch.nn.Module, samples: tuple[Tensor, ...], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[Tensor], list[str]]:
    """Returns the results of the module as a list and a name for each."""
    import torch

    shown = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    try:
        with torch.no_grad(), _quiet():
            # A copy: a forward that works in place must not change what it is given next.
            result = module(*(sample.clone() for sample in samples))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            f"the module fails on {shown}: {type(error).__name__}: {reason}", "check the input shapes and types"
        ) from error
    results = list(result) if isinstance(result, tuple) else [result]
    wrong = [type(each).__name__ for each in results if not isinstance(each, torch.Tensor)]
    if wrong or not results:
        raise ConfigError(
            f"the module returns {wrong[0] if wrong else 'nothing'} where a tensor is needed",
            "let forward return a tensor, or a tuple or dictionary of tensors",
        )
    plain = ["output"] if len(results) == 1 else [f"output_{at}" for at in range(len(results))]
    keys: list[str] = module.__dict__.pop("_anynpu_keys", plain)
    return [each.detach().clone() for each in results], keys


def _exported(
    module: torch.nn.Module, samples: tuple[Tensor, ...], names: list[str], outs: list[str], opset: int
) -> onnx.ModelProto:
    """Exports by tracing, which is fast and writes the same bytes each time; by torch.export where tracing fails."""
    try:
        return _traced(module, samples, names, outs, opset)
    except Exception as error:
        first = error
    try:
        if not _has_two_exporters():
            raise first
        return _by_torch_export(module, samples, names, outs, opset)
    except Exception as error:
        reason = (str(first).strip().splitlines() or [type(first).__name__])[0]
        raise ToolFailed(
            f"torch.onnx.export cannot export the module: {reason}",
            argv=("torch.onnx.export",),
            log=f"{first}\n\n{error}",
            last_lines=str(error).strip().splitlines()[-3:],
            hint="simplify the module's forward, or export it to ONNX yourself",
        ) from error


def _traced(
    module: torch.nn.Module, samples: tuple[Tensor, ...], names: list[str], outs: list[str], opset: int
) -> onnx.ModelProto:
    import torch

    stream = io.BytesIO()
    by_tracing: dict[str, Any] = {"dynamo": False} if _has_two_exporters() else {}
    with _quiet(), _silent_stdout(), _plain_attention(), _bare_forward(module):
        target: Any = stream  # a stream works; the annotation only knows paths
        torch.onnx.export(
            module,
            samples,
            target,
            **by_tracing,
            input_names=names,
            output_names=outs,
            opset_version=opset,
            # The exporter folds batch norms with a square root that is not always rounded correctly; left to simplify,
            # every exporter's model of one network folds to the same bits.
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    return onnx.load_from_string(stream.getvalue())


def _has_two_exporters() -> bool:
    """Tells whether this torch has the exporter by torch.export too: before 2.5 there is tracing alone."""
    import torch

    return "dynamo" in inspect.signature(torch.onnx.export).parameters


def _by_torch_export(
    module: torch.nn.Module, samples: tuple[Tensor, ...], names: list[str], outs: list[str], opset: int
) -> onnx.ModelProto:
    import torch

    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module, samples, dynamo=True, input_names=names, output_names=outs, opset_version=opset, verbose=False
        )
    model = onnx.ModelProto()
    model.CopyFrom(program.model_proto)  # type: ignore[union-attr]
    graph = model.graph
    del model.metadata_props[:], graph.metadata_props[:]
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps warnings, log lines and prints of torch and of the user's forward off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Turns off the fused attention of torch.nn, which has no ONNX counterpart."""
    import torch

    switch = getattr(torch.backends, "mha", None)
    if switch is None:  # an older torch, which takes the fused path in fewer cases and has no switch for it
        yield
        return
    enabled = switch.get_fastpath_enabled()
    switch.set_fastpath_enabled(False)
    try:
        yield
    finally:
        switch.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def _bare_forward(module: torch.nn.Module) -> Iterator[None]:
    """Hides the optional parameters of forward: tracing would turn their defaults, such as a flag, into tensors."""
    forward, kept = module.forward, module.__dict__.get("forward")
    module.__dict__["forward"] = lambda *arguments: forward(*arguments)
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if kept is not None:
            module.__dict__["forward"] = kept


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """Sends file descriptor 1 nowhere: the C++ half of torch prints the whole graph there when tracing fails."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        with contextlib.suppress(OSError, TypeError, AttributeError):  # no C library by that name on some systems
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _session(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Returns the exported model as a function; it lacks the inputs that the module does not use."""
    names = {item.name for item in model.graph.input}
    try:
        model, _ = for_inference(model)
        session = Session(model)
    except IntegrityError as error:
        raise ToolFailed(
            f"the exported ONNX model does not run: {error.message}", argv=("torch.onnx.export",)
        ) from error
    return lambda feeds: session.run({name: feed for name, feed in feeds.items() if name in names})
