"""The keywords of `anynpu.build` and `anynpu.check`: the flags of the verbs by their names.

None of them has a default here: what the caller leaves out, or gives as None, is what `Request` and `ModelSource` say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from anynpu.api.live import Samples
from anynpu.pipeline.observer import Observer
from anynpu.quantize.plan import Activations, Border, Rounding, Weights
from anynpu.schema import Json
from anynpu.tasks.images import Preprocess

F = TypeVar("F", bound=Callable[..., Any])
File = str | PathLike[str]
Value = str | int | float | bool | PathLike[str]


class ModelKeywords(TypedDict, total=False):
    """What a model's file does not say."""

    ckpt: File | None
    trust_checkpoint: bool | None
    arg: Mapping[str, Json] | None
    shape: Mapping[str, Sequence[int]] | None
    dtype: Mapping[str, str] | None
    layout: Mapping[str, str] | None
    channels: Mapping[str, str] | None
    output_names: Sequence[str] | None
    fix: Mapping[str, object] | None
    end_at: Sequence[str] | None
    keep_outputs: bool | None


class OptionKeywords(TypedDict, total=False):
    """Options of compilers: those of every quantising one, and `option` for any ({"vela.optimise": "size"})."""

    activations: Activations | None
    weights: Weights | None
    method: str | None
    percentile: float | None
    io: Border | None
    bias_correction: bool | None
    equalize: bool | None
    weight_bits: Literal[4, 8] | None
    rounding: Rounding | None
    wide_tensors: str | Sequence[str] | None
    float_tensors: str | Sequence[str] | None
    quantisation: File | None
    option: Mapping[str, Value] | None


class CheckKeywords(ModelKeywords, OptionKeywords, total=False):
    """The keywords of `anynpu.check`."""

    limit: int | None
    preprocess: Preprocess | Mapping[str, object] | None
    task: str | None
    tokenizer: File | None
    cache_dir: File | None
    observer: Observer | None


class BuildKeywords(CheckKeywords, total=False):
    """The keywords of `anynpu.build`."""

    output: File | None
    overwrite: bool | None
    test: Samples | None
    metric: str | None
    require_npu: float | str | None
    min_sqnr: float | None
    max_drop: float | None
    strict_calibration: bool | None
    repair: bool | None
    keep_failed: bool | None
    qat: bool | None
    seed: int | None


def spelled_out(form: type[Any]) -> Callable[[F], F]:
    """Returns a decorator that puts each keyword of a TypedDict into a function's signature, for `help` and editors."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        plain = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in get_type_hints(form).items()
        ]
        others = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
        function.__signature__ = own.replace(parameters=[*plain, *named, others])  # type: ignore[attr-defined]
        return function

    return decorate
