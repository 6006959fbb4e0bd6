"""A QDQ model that is executed piece by piece, for biases that are measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from anynpu.quantize.bias import channel_mean, kept
from anynpu.quantize.measured import Place
from anynpu.quantize.net import Floats
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, planned_form
from anynpu.runtime.ort import open_session
from anynpu.tensors import Array


class QdqPieces:
    """A QDQ model between two of its convolutions: what later nodes read is kept for each sample."""

    def __init__(
        self,
        model: onnx.ModelProto,
        names: Mapping[str, str],
        ranges: Mapping[str, Range],
        plan: QuantPlan,
        chosen: Sequence[Place],
        samples: Iterable[dict[str, Array]],
    ) -> None:
        """`names` are those of the nodes, by their results in the float model."""
        self._model, self._ranges, self._plan = model, ranges, plan
        by_node = {names[place.result]: place for place in chosen}
        ends = [(by_node[node.name], stop) for stop, node in enumerate(model.graph.node, 1) if node.name in by_node]
        self.places: Sequence[Place] = [place for place, _ in ends]
        self._stops = {place.result: stop for place, stop in ends}
        self._start = 0
        self._alive: dict[str, list[Array]] = {}
        for sample in samples:
            for name, values in sample.items():
                self._alive.setdefault(name, []).append(values)

    def mean(self, place: Place) -> Floats:
        stop = self._stops[place.result]
        self._alive, self._start = self._executed(stop), stop
        results = self._alive[self._model.graph.node[stop - 1].output[0]]

        def behind(values: Array) -> Array:
            return self._stored(place.behind, place.of(self._stored(place.result, values)))

        mean: Floats = np.mean([channel_mean(each, place.axis, behind) for each in results], axis=0)
        return mean

    def shift(self, place: Place, by: Array) -> None:
        for each in self._alive[self._model.graph.node[self._stops[place.result] - 1].output[0]]:
            each += by.reshape(1, -1, 1, 1)

    def _stored(self, name: str, values: Array) -> Array:
        dtype = self._plan.stored_type(name)
        if dtype == "float32":
            return values
        return kept(values, planned_form(self._ranges[name], dtype, self._plan), dtype)

    def _executed(self, stop: int) -> dict[str, list[Array]]:
        """Returns what later nodes read, and what the last before `stop` gives."""
        model, alive = self._model, self._alive
        nodes = list(model.graph.node)
        piece, later = nodes[self._start : stop], {name for node in nodes[stop:] for name in node.input}
        read = {name for node in piece for name in node.input}
        wanted = sorted(({name for node in piece for name in node.output} & later) | {piece[-1].output[0]})
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[0].dtype), values[0].shape)
            for name, values in alive.items()
            if name in read
        ]
        stored = [tensor for tensor in model.graph.initializer if tensor.name in read]
        part = helper.make_graph(piece, "piece", inputs, [onnx.ValueInfoProto(name=name) for name in wanted], stored)
        whole = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
        session = open_session(whole.SerializeToString(), threads=1)
        count = len(next(iter(alive.values())))
        rows = [session.run(wanted, {value.name: alive[value.name][at] for value in inputs}) for at in range(count)]
        computed = {name: [row[at] for row in rows] for at, name in enumerate(wanted)}
        return {name: values for name, values in alive.items() if name in later} | computed
