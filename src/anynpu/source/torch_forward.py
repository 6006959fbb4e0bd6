"""What a module's forward does besides computing: it draws random numbers, reads values into Python, keeps state.

A graph can do none of that. A trace keeps what it met once, so each is named here, by running the module itself.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.errors import ConfigError, first_line
from anynpu.source.torch_arrays import to_array, to_tensor
from anynpu.tensors import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SEEDS = 8
"""How many seeds are tried where forward draws random numbers and two runs agree."""
_READING = {
    "__bool__": "a branch on values",
    "is_nonzero": "a branch on values",
    "equal": "a branch on values",
    "allclose": "a branch on values",
    "item": "item()",
    "__int__": "int()",
    "__index__": "an index",
    "__float__": "float()",
    "__complex__": "complex()",
    "tolist": "tolist()",
    "numpy": "numpy()",
    "__array__": "numpy()",
}


@dataclass(frozen=True)
class ModuleRun:
    """Runs a module on arrays by input name, as a graph is run."""

    module: torch.nn.Module
    names: tuple[str, ...]
    usual: Mapping[str, Array]
    """What an input is given that the samples leave out, since the graph has no use for it."""
    quiet: Callable[[], Any]

    def __call__(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Returns the outputs in the order of the graph's."""
        import torch

        try:
            # A copy: a forward that works in place must not change the samples.
            tensors = [to_tensor(np.array(self._own(name, feeds))) for name in self.names]
            with torch.no_grad(), self.quiet():
                result = self.module(*tensors)
        except Exception as error:
            raise ConfigError(
                f"the module fails on a sample: {type(error).__name__}: {first_line(error)}",
                "check forward, or leave the sample out",
            ) from error
        if isinstance(result, Mapping):
            result = tuple(result.values())
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        return [to_array(each) for each in results]

    def _own(self, name: str, feeds: Mapping[str, Array]) -> Array:
        """Returns an input in the module's own shape, which has no axis of samples where the graph was given one."""
        usual = self.usual[name]
        array = feeds.get(name, usual)
        return array[0] if array.shape == (1, *usual.shape) else array


def set_to_inference(module: torch.nn.Module) -> tuple[str, ...]:
    """Puts every part of a module into evaluation mode and returns a note where eval() leaves some in training."""
    module.eval()
    stuck = {name: part for name, part in module.named_modules() if part.training}
    for part in stuck.values():
        part.training = False
    if not stuck:
        return ()
    # Of a whole module that is stuck, the innermost parts say most.
    names = [f"{name} ({type(part).__name__})" if name else type(part).__name__ for name, part in stuck.items()]
    return (f"left in training mode by eval(), and set to inference: {', '.join(names[::-1][:8])}",)


@dataclass(frozen=True)
class Unused:
    """A module as it was before its first call: what forward keeps of its first input shows beside it."""

    module: torch.nn.Module | None
    state: Mapping[str, object]

    @staticmethod
    def of(module: torch.nn.Module) -> Unused:
        """Returns a copy that shares the weights; of a module that cannot be copied nothing is known."""
        memo: dict[int, Any] = {id(weight): weight for weight in module.parameters()}
        try:
            return Unused(copy.deepcopy(module, memo), _state(module))
        except Exception:  # whatever the parts of a user's module raise
            return Unused(None, _state(module))

    def require_same(self, module: torch.nn.Module, run: Callable[[torch.nn.Module], Sequence[Tensor]]) -> None:
        """Raises ConfigError where a module that has seen other inputs gives other results than one that has not."""
        if self.module is None:
            return
        try:
            first = run(self.module)
        except ConfigError:  # the copy is not fit to run: nothing is known
            return
        if not _same(first, run(module)):
            kept = _changed(self.state, _state(module))
            raise ConfigError(
                "the module gives different results for the same input: they depend on inputs that it was given before"
                + (f", of which forward keeps {', '.join(kept[:3])}" if kept else ""),
                "give what it keeps between calls as an input and an output, or set it when the module is made",
            )


def require_repeatable(module: torch.nn.Module, run: Callable[[], Sequence[Tensor]]) -> tuple[str, ...]:
    """Returns notes; where the same input does not give the same output, raises ConfigError with what is to blame."""
    import torch

    before = _random_state()
    first = run()
    drew = _random_state() != before
    kept = _state(module)
    second = run()
    changed = _changed(kept, _state(module))
    if _same(first, second) and drew:
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            if not _same(first, run()):
                second = []
                break
    if not _same(first, second):
        part = _drawing_part(module, run) if drew else ""
        if drew:
            raise ConfigError(
                f"the module gives different results for the same input: {part} draws random numbers in forward",
                "take random numbers out of its forward; dropout needs training=self.training",
            )
        if changed:
            raise ConfigError(
                f"the module gives different results for the same input: forward changes its own {changed[0]}",
                "give what it keeps between calls as an input and an output",
            )
        raise ConfigError(
            "the module gives different results for the same input",
            "take random numbers, clocks and counters out of its forward",
        )
    notes = ["forward draws random numbers that do not show in its results"] if drew else []
    if changed:
        notes.append(f"forward changes its own {', '.join(changed[:3])}: the graph keeps nothing between calls")
    return tuple(notes)


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        x, y = to_array(a), to_array(b)
        if x.shape != y.shape:
            return False
        if x.dtype.kind != "f":
            if not np.array_equal(x, y):
                return False
            continue
        # Threads may sum in another order from run to run.
        scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
        if not np.allclose(x, y, rtol=0.0, atol=1e-6 * scale, equal_nan=True):
            return False
    return True


def _random_state() -> tuple[bytes, bytes, int, object]:
    import torch

    _, keys, place, *_ = np.random.get_state(legacy=True)
    return to_array(torch.get_rng_state()).tobytes(), np.asarray(keys).tobytes(), int(place), random.getstate()


def _drawing_part(module: torch.nn.Module, run: Callable[[], Sequence[Tensor]]) -> str:
    """Returns the innermost part of a module in whose forward random numbers are drawn."""
    names = {part: name for name, part in module.named_modules()}
    started: list[object] = []
    drawing: list[str] = []

    def enter(part: torch.nn.Module, arguments: Any) -> None:
        started.append(_random_state())

    def leave(part: torch.nn.Module, arguments: Any, result: Any) -> None:
        if started.pop() != _random_state() and not drawing:
            name = names.get(part, "")
            drawing.append(f"{name} ({type(part).__name__})" if name else type(part).__name__)

    hooks = [h for p in names for h in (p.register_forward_pre_hook(enter), p.register_forward_hook(leave))]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return drawing[0] if drawing else type(module).__name__


def _state(module: torch.nn.Module) -> dict[str, object]:
    """Returns what a module could keep between calls: tensors by their version, numbers and texts by value."""
    import torch

    own = vars(torch.nn.Module()).keys() - {"training"}
    state: dict[str, object] = {}
    for prefix, part in module.named_modules():
        held = {name: value for name, value in vars(part).items() if name not in own}
        for name, value in {**held, **part._parameters, **part._buffers}.items():
            place = f"{prefix}.{name}" if prefix else name
            if isinstance(value, torch.Tensor):
                # A lazy layer's weights have no shape before its first call.
                lazy = torch.nn.parameter.is_lazy(value)
                state[place] = "lazy" if lazy else (value._version, tuple(value.shape))
            elif isinstance(value, bool | int | float | str):
                state[place] = value
            elif isinstance(value, list | dict | set):
                state[place] = len(value)
    return state


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


@dataclass
class Reads:
    """The places where values of tensors become Python numbers, each with what was read there."""

    places: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    """Where the size of a selection is read, which many graphs have too: to blame only where results differ."""

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{place}: forward reads values of its input ({what}): the graph keeps what the traced input gave"
            for place, what in self.places.items()
        )

    @contextmanager
    def watching(self, module: torch.nn.Module) -> Iterator[None]:
        """Records what is read while the block runs; weights, and what is made of them alone, do not count."""
        from torch.overrides import TorchFunctionMode

        places, sizes = self.places, self.sizes

        class Watch(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = getattr(function, "__name__", "")
                from_input = any(hasattr(each, _MARK) for each in _tensors((args, kwargs or {})))
                what = _READING.get(name) if from_input else None
                if what and (place := _place()):
                    places.setdefault(place, what)
                if name in _SIZING and any(hasattr(each, _SELECTED) for each in _tensors(args)) and (place := _place()):
                    sizes.setdefault(place, "the size of a selection by values")
                result = function(*args, **(kwargs or {}))
                if name in _SHAPED_ALIKE or not from_input:
                    return result
                indices = list(_tensors(args[1:])) if name == "__getitem__" else []
                by_mask = any(not each.dtype.is_floating_point and each.dtype.itemsize == 1 for each in indices)
                if name in _SELECTING or by_mask:
                    for tensor in _tensors(result):
                        setattr(tensor, _SELECTED, True)
                return _marked(result)

        hook = module.register_forward_pre_hook(lambda part, arguments: _marked(arguments))
        try:
            with Watch():
                yield
        finally:
            hook.remove()


_MARK, _SELECTED = "_anynpu_of_input", "_anynpu_selected"
_SELECTING = {"nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"}
_SIZING = {"__len__", "size", "numel", "__get__"}
_SHAPED_ALIKE = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
"""What has the shape of the input and none of its values."""


def _tensors(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _marked(value: Any) -> Any:
    """Returns a result after marking its tensors as made from the input."""
    for tensor in _tensors(value):
        setattr(tensor, _MARK, True)
    return value


def _place() -> str:
    """Returns file and line of the innermost frame that is not torch's, or nothing where that is ours."""
    import torch

    torch_folder, ours = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(torch_folder):
        frame = frame.f_back
    if frame.f_code.co_filename.startswith(ours):
        return ""
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
