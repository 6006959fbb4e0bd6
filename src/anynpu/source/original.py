"""The user's model as a graph to start from, and the proof that what is imported still computes what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu import schema
from anynpu.artifact import PassEffect
from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure.samples import read_samples
from anynpu.source import zoo
from anynpu.source.torch_module import standin_note
from anynpu.tensors import Array

if TYPE_CHECKING:
    import onnx

    from anynpu.graph.agreement import Disagreement, Run
    from anynpu.graph.heads import CutDetector
    from anynpu.source.load import ModelSource
    from anynpu.source.torch_export import Exported


@dataclass(frozen=True)
class Proof(schema.Whole):
    """On how many of how many samples an imported graph was compared with the user's model."""

    compared: int
    samples: int
    notes: tuple[str, ...] = ()


class PassesChanged(IntegrityError):
    """Passes that must keep results changed them on these inputs."""

    def __init__(self, feeds: Sequence[Mapping[str, Array]], disagreement: Disagreement) -> None:
        super().__init__(f"simplification changed {disagreement}", "export the model again, and report it")
        self.feeds = feeds


@dataclass(frozen=True)
class Original:
    """A model as it was given: a graph to start from, and the way to run what the user has."""

    graph: onnx.ModelProto
    notes: tuple[str, ...]
    exported: Exported | None = None
    branching: onnx.ModelProto | None = None
    """The graph before known branches and fused operators were written out, where it has any."""
    effects: tuple[PassEffect, ...] = ()
    """What was done to the user's graph before."""
    narrow: onnx.ModelProto | None = None
    """The graph before it was made to compute in float32, where it did not."""
    integers: onnx.ModelProto | None = None
    """The graph before its operators on integers were written between pairs, where it has any."""

    def prove(self, model: onnx.ModelProto, folders: Sequence[str], detector: CutDetector | None = None) -> Proof:
        """Raises unless `model` computes what the original does, on samples, or on random numbers where there are none;
        PassesChanged where it is the passes that it came out of.

        Of a detector that was cut, the cut one with the host's decode must.
        """
        from anynpu.graph.agreement import disagreement, spread
        from anynpu.graph.proof import executed, proof_count, random_probes
        from anynpu.graph.run import Session
        from anynpu.graph.training import require_repeatable

        sets = [read_samples(Path(folder)) for folder in folders]
        total = sum(map(len, sets))
        feeds: Sequence[Mapping[str, Array]] = [sample for each in sets for sample in each]
        effort = 8 if self.exported is not None and self.exported.reads.places else 1
        if total:
            feeds = [feeds[at] for at in spread(total, proof_count(model, total, effort))]
        else:
            # Random inputs on which nothing overflows: far from any sample, that tells nothing.
            probes, answer = random_probes(model), Session(model).run
            probes = probes[: max(3, proof_count(model, len(probes), effort))]
            feeds = [f for f in probes if all(np.isfinite(o).all() for o in answer(f) if o.dtype.kind == "f")]
        run: Run = Session(self.branching or self.graph).run
        if self.exported is not None:
            module = self.exported.run
            # A result that is a number has an axis of one in the graph.
            run = lambda feed: [np.atleast_1d(array) for array in module(feed)]  # noqa: E731
        if self.exported is not None:
            self.exported.watch(feeds)
        elif feeds:
            require_repeatable(self.graph, feeds[0])
        apart = detector.disagreement(run, feeds) if detector is not None and feeds else None
        difference = None
        if feeds and (detector is None or apart is not None):
            difference = disagreement([v.name for v in model.graph.output], run, Session(model).run, feeds)
        if detector is not None and apart is not None and difference is None:
            raise detector.refusal(apart)
        if difference is not None and model is not self.graph and executed(feeds)(self.graph, model):
            raise PassesChanged(feeds, difference)
        if difference is not None and self.exported is None:
            raise IntegrityError(f"the import changed {difference}", "export the model again, and report it")
        if self.exported is not None:
            self.exported.require_equal(difference)
        notes = self.exported.reads.notes() if self.exported is not None else ()
        if self.narrow is not None and detector is None and feeds:
            from anynpu.graph.precision import rounding

            notes = (*notes, *rounding(self.narrow, self.graph, feeds))
        if self.integers is not None and feeds:
            from anynpu.graph.integers import compared

            notes = (*notes, *compared(self.integers, self.graph, feeds))
        return Proof(len(feeds) if total else 0, total, tuple(notes))


def read_original(source: ModelSource) -> Original:
    """Returns the user's model with inputs bound, in inference mode and with every shape known."""
    from anynpu.graph.dynamic import in_floats
    from anynpu.graph.end import ended
    from anynpu.graph.fix import fixed, with_sample_axis, without_constant_outputs
    from anynpu.graph.fused import written_out
    from anynpu.graph.integers import in_pairs
    from anynpu.graph.linear import without_maps
    from anynpu.graph.passes import Pass, run
    from anynpu.graph.precision import in_float32
    from anynpu.graph.shapes import make_static, open_batches, with_shapes
    from anynpu.graph.training import for_inference
    from anynpu.source.onnx_file import read

    notes: list[str] = []
    exported = None if source.kind == "onnx" else _exported(source)
    model = read(Path(source.model)) if exported is None else exported.model
    notes += [] if exported is None else [*exported.notes, *standin_note(), *_unnamed(source, model)]

    def noted(answer: tuple[onnx.ModelProto, tuple[str, ...]]) -> tuple[onnx.ModelProto, int]:
        notes.extend(answer[1])
        return answer[0], len(answer[1])

    shapes = {name: list(shape) for name, shape in source.shapes.items()}
    of_file = (lambda _: "") if exported is None else (lambda _: "the module's own inputs are what was stated")

    def noting(
        name: str, what: str, change: Callable[[onnx.ModelProto], tuple[onnx.ModelProto, tuple[str, ...]]]
    ) -> Pass[onnx.ModelProto]:
        requires = of_file if change not in (for_inference, with_sample_axis) else (lambda _: "")
        return Pass(name, what, lambda graph: noted(change(graph)), requires=requires, keeps_results=False)

    begin = [
        noting("end", "the model ends at the tensors that --end-at names", lambda graph: ended(graph, source.end_at)),
        noting("fix", "inputs that --fix names become constants", lambda graph: fixed(graph, source.fixed)),
        noting("maps", "rows of numbers stand for maps from classes to numbers", without_maps),
        noting("inference", "operators in training mode compute as they do outside training", for_inference),
        noting("varying", "outputs that no input reaches go", without_constant_outputs),
    ]
    real = [
        noting("dynamic", "what is quantised at run time is real", in_floats),
        noting("float32", "what is stored or fed as float16, bfloat16 or double is float32", in_float32),
    ]
    known = [
        noting("fused", "operators of ONNX Runtime and scikit-learn are written in ONNX's own", written_out),
        Pass("static", "every shape is known", lambda graph: (make_static(graph, shapes), 1)),
        noting("sample-axis", "inputs without an axis of samples get one", with_sample_axis),
    ]
    bound, begun = run(begin, model)
    if exported is None and (batches := open_batches(bound, shapes)):
        notes.append(f"the batch that the file leaves open is one sample: {', '.join(batches)}")
        shapes |= batches
    pairs, rewritten = run([noting("qdq", "operators on stored integers are real ones between pairs", in_pairs)], bound)
    frozen, widened = run(real, pairs)
    graph, done = run(known, frozen)
    branching = _branching(frozen, shapes, of_file=exported is None)
    wide = any(effect.changed for effect in widened) and exported is None and branching is None
    narrow = with_sample_axis(with_shapes(pairs, shapes))[0] if wide else None
    integers = with_sample_axis(bound)[0] if pairs is not bound else None
    return Original(graph, tuple(notes), exported, branching, (*begun, *rewritten, *widened, *done), narrow, integers)


def _branching(graph: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], of_file: bool) -> onnx.ModelProto | None:
    """Returns a graph with branches or fused operators as the proof runs it, None for any other."""
    from anynpu.graph.branches import has_branches
    from anynpu.graph.fix import with_sample_axis
    from anynpu.graph.fused import is_fused
    from anynpu.graph.shapes import with_shapes

    if not has_branches(graph) and not any(map(is_fused, graph.graph.node)):
        return None
    return with_sample_axis(with_shapes(graph, shapes))[0] if of_file else graph


def _unnamed(source: ModelSource, model: onnx.ModelProto) -> tuple[str, ...]:
    """Returns the sentence that says which outputs were given no name, where some were."""
    names = [value.name for value in model.graph.output]
    if not source.output_names or len(names) == len(source.output_names):
        return ()
    return (f"the module returns {len(names)} tensors and {len(source.output_names)} got a name: {', '.join(names)}",)


def _exported(source: ModelSource) -> Exported:
    import torch

    from anynpu.source.torch_export import OPSET, export
    from anynpu.source.torch_module import load_module

    torch.set_num_threads(1)  # single samples gain nothing by more, and on a busy machine threads wait for each other
    if source.kind == "zoo":
        card = zoo.card(source.zoo_name)
        shapes = {card.input_name: card.input_shape, **source.shapes}
        return export(zoo.model(source.zoo_name), shapes, {card.input_name: "float32"}, card.output_names, OPSET)
    if not source.shapes:
        raise ConfigError("a PyTorch model does not say what its inputs look like", "give --shape NAME=1,3,224,224")
    checkpoint = Path(source.checkpoint) if source.checkpoint else None
    module = load_module(source.reference(), checkpoint, source.trust_checkpoint)
    dtypes = {name: source.dtypes.get(name, "float32") for name in source.shapes}
    return export(module, source.shapes, dtypes, source.output_names or None, OPSET)
