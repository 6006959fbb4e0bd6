"""The model as µNPU-Bench's flags name it: a Python file, its class and checkpoint, or one of ours."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anynpu.errors import ConfigError
from anynpu.schema import JsonObject, literal
from anynpu.source.load import ModelSource

LAYOUTS = ("NCHW", "NHWC", "NCW", "NWC")
TORCH_ONLY = ("model_module_name", "model_module_args", "model_ckpt")


@dataclass(frozen=True)
class Named:
    """What the flags say of the model."""

    model: str
    model_module_name: str = ""
    model_module_args: str = ""
    model_ckpt: str = ""
    trust_checkpoint: bool = False
    input_names: tuple[str, ...] = ()
    input_shapes: tuple[tuple[int, ...], ...] = ()
    input_layouts: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def inputs(self) -> dict[str, tuple[int, ...] | None]:
        """The inputs by name, with their shapes where they are stated."""
        for name in self.input_names:
            if self.input_names.count(name) > 1:
                raise ConfigError(f"--input_names {name}: is given twice")
        shapes: Sequence[tuple[int, ...] | None] = self.input_shapes or [None] * len(self.input_names)
        if len(shapes) != len(self.input_names):
            raise ConfigError(
                f"{len(self.input_names)} --input_names and {len(shapes)} --input_shape",
                "give --input_shape once for each input, in the order of --input_names",
            )
        return dict(zip(self.input_names, shapes, strict=True))


def names(text: str | None) -> tuple[str, ...]:
    """Returns the values of a list that commas separate."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def shapes(flag: str, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of "1,3,96,96" and the like."""
    parsed = []
    for text in texts:
        try:
            shape = tuple(int(part) for part in names(text))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 1:
            raise ConfigError(f"{flag} {text}: whole numbers above zero were expected, such as 1 3 96 96")
        parsed.append(shape)
    return tuple(parsed)


def layouts(text: str | None) -> tuple[str, ...]:
    """Returns the layouts of the inputs."""
    chosen = tuple(name.upper() for name in names(text))
    for name in chosen:
        if name not in LAYOUTS:
            raise ConfigError(f"--input_layout {name}: no such layout", f"there is {', '.join(LAYOUTS)}")
    return chosen


def source(named: Named) -> tuple[ModelSource, list[str]]:
    """Returns the model as the pipeline takes it, and a sentence for every flag that it has no use for."""
    is_factory = ":" in named.model and not named.model.startswith("zoo:") and not Path(named.model).exists()
    if not named.model.endswith(".py") and not is_factory:
        notes = [f"--{flag}: {named.model} brings its own; not used" for flag in TORCH_ONLY if getattr(named, flag)]
        known = {n: s for n, s in named.inputs.items() if s} if not named.model.startswith("zoo:") else {}
        return ModelSource(named.model, shapes=known, layouts=_layouts(named)), notes
    if ":" not in named.model and not named.model_module_name:
        raise ConfigError(f"{named.model}: which class of it is the model?", "give --model_module_name CLASS")
    if not named.model_ckpt:
        raise ConfigError(
            f"{named.model}: without a checkpoint the weights are random numbers", "give --model_ckpt FILE"
        )
    if not named.input_names or not named.input_shapes:
        raise ConfigError(
            "a PyTorch model does not say what its inputs look like",
            "give --input_names input --input_shape 1 3 96 96",
        )
    location = named.model if ":" in named.model else f"{named.model}:{named.model_module_name}"
    return (
        ModelSource(
            location,
            named.model_ckpt,
            named.trust_checkpoint,
            arguments=arguments(named.model_module_args),
            shapes={name: shape for name, shape in named.inputs.items() if shape},
            layouts=_layouts(named),
            output_names=named.output_names,
        ),
        [],
    )


def _layouts(named: Named) -> dict[str, str]:
    if not named.input_layouts:
        return {}
    if not named.input_names:
        raise ConfigError("--input_layout: of which input?", "give --input_names as well")
    one = len(named.input_layouts) == 1
    chosen = named.input_layouts * len(named.input_names) if one else named.input_layouts
    if len(chosen) != len(named.input_names):
        raise ConfigError(f"{len(named.input_names)} --input_names and {len(chosen)} --input_layout")
    return dict(zip(named.input_names, chosen, strict=True))


def arguments(text: str) -> JsonObject:
    """Returns the constructor's arguments of "width=8,bias=true" or of an object in JSON or Python."""
    if not text or text == "None":
        return {}
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
            with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                data = ast.literal_eval(text)
        if not isinstance(data, Mapping):
            raise ConfigError(f"--model_module_args {text}: neither a JSON object nor NAME=VALUE")
        return {str(name): value for name, value in data.items()}
    values = {}
    for part in names(text):
        name, sign, value = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise ConfigError(
                f"--model_module_args {part}: NAME=VALUE was expected",
                "the constructor's arguments go by name: --model_module_args num_classes=10 bias=true",
            )
        if name.strip() in values:
            raise ConfigError(f"--model_module_args {part}: {name.strip()} is given twice")
        plain = literal(value.strip())
        values[name.strip()] = plain.strip("'\"") if isinstance(plain, str) else plain
    return values
