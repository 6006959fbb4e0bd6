"""Float models that are cut at many tensors: each operator computes from values that are fed, not from what is before.

Fed with the values of a build, such a model says what the float operator makes of them. What the build has instead is
the operator's own error; what the cut model has instead of the float model is inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from anynpu.artifact import Artifact
from anynpu.tensors import Array

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
_FED = "//fed"


def cut_model(artifact: Artifact, names: Collection[str]) -> Run:
    """Returns a function from values of the named tensors, and of inputs, to what the float operators make of them."""
    return _cut_onnx(artifact, names) if artifact.manifest.format == "onnx" else _cut_tflite(artifact, names)


def _feeding(
    run: Callable[[dict[str, Array]], Mapping[str, Array]], fed: Collection[str], plain: Collection[str]
) -> Run:
    def feed(values: Mapping[str, Array]) -> Mapping[str, Array]:
        return run({name + _FED: values[name] for name in fed} | {name: values[name] for name in plain})

    return feed


def _cut_onnx(artifact: Artifact, names: Collection[str]) -> Run:
    import onnx
    from onnx import TensorProto, helper

    from anynpu.graph.shapes import infer
    from anynpu.quantize.onnx_net import runner

    model = infer(onnx.load(artifact.main), strict=False)
    graph = model.graph
    inputs = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    kinds = inputs | {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    fed = {name for name in names if kinds.get(name) == TensorProto.FLOAT}
    used: set[str] = set()
    for node in graph.node:
        for place, name in enumerate(node.input):
            used.add(name)
            if name in fed:
                node.input[place] = name + _FED
    fed &= used
    plain = [name for name in inputs if name in used - fed]
    kept = [value for value in graph.input if value.name in plain]
    del graph.input[:]
    graph.input.extend(kept)
    graph.input.extend(helper.make_tensor_value_info(name + _FED, TensorProto.FLOAT, None) for name in sorted(fed))
    return _feeding(runner(model), sorted(fed), plain)


def _cut_tflite(artifact: Artifact, names: Collection[str]) -> Run:
    from anynpu.lowering.graph import Graph
    from anynpu.lowering.net import runner
    from anynpu.lowering.read import from_bytes

    source = from_bytes(artifact.main.read_bytes(), artifact.main.name)
    used = {name for operator in source.operators for name in operator.inputs}
    fed = sorted(n for n in names if n in used and source.tensors[n].dtype == "float32")
    tensors = dict(source.tensors)
    tensors |= {name + _FED: replace(source.tensors[name], name=name + _FED) for name in fed}
    operators = tuple(
        replace(operator, inputs=tuple(name + _FED if name in fed else name for name in operator.inputs))
        for operator in source.operators
    )
    plain = [name for name in source.inputs if name in used and name not in fed]
    computed = {name for operator in operators for name in operator.outputs}
    outputs = tuple(name for name in names if name in computed)
    kept = {name: tensor for name, tensor in tensors.items() if name not in source.inputs or name in plain}
    graph = Graph(operators, kept, (*plain, *(name + _FED for name in fed)), outputs or source.outputs)
    return _feeding(runner(graph), fed, plain)
