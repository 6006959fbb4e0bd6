"""anynpu.build and anynpu.check: a model for one or more chips, and what came of it."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anynpu import schema
from anynpu.api.live import Named, Samples, model_file, samples_file
from anynpu.api.result import Build, Checks
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.files import cache_chosen
from anynpu.measure.threshold import setting_of
from anynpu.measure.verify import Gate
from anynpu.pipeline.build import build as run_build
from anynpu.pipeline.check import check as run_check
from anynpu.pipeline.output import check_output
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.request import Request, parse_share
from anynpu.pipeline.steps import Observer
from anynpu.quantize.calibration import Preprocess
from anynpu.source.load import ModelSource, as_text
from anynpu.store import Store

if TYPE_CHECKING:
    from anynpu.api.live import Model

RANDOM = "random:4"
"""What `check` calibrates with where no samples are given: ranges change no operator."""


def build(
    model: Model,
    chips: str | Sequence[str],
    data: Samples | None = None,
    *,
    output: str | PathLike[str] | None = None,
    overwrite: bool = False,
    test: Samples | None = None,
    limit: int = 512,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    task: str = "",
    tokenizer: str | PathLike[str] = "",
    metric: str = "",
    require_npu: float | str = 1.0,
    min_sqnr: float | None = None,
    max_drop: float | None = None,
    strict_calibration: bool = False,
    repair: bool = False,
    qat: bool = False,
    seed: int = 0,
    ckpt: str | PathLike[str] = "",
    trust_checkpoint: bool = False,
    arg: Mapping[str, Any] | None = None,
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    channels: Mapping[str, str] | None = None,
    output_names: Sequence[str] = (),
    fix: Mapping[str, Any] | None = None,
    option: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> Build:
    """Exports, quantises, compiles, executes and compares a model for one or more chips.

    `model` is what -m takes, a live `torch.nn.Module` or an `onnx.ModelProto`; `data` and `test` are what --data and
    --test take, or arrays. The other names are those of the flags of `anynpu build`. Options of compilers (-O) are
    keywords (method="mse") or entries of `option` ({"vela.optimise": "size"}). `output` is written as -o writes it.

    What concerns the model itself raises. What concerns one chip is that chip's result; `Build.require()` raises it.
    """
    described = _Described(ckpt, trust_checkpoint, arg, shape, dtype, layout, channels, output_names, fix)
    prepared = _Prepared(test, limit, preprocess, task, tokenizer, metric)
    with _files(cache_dir) as (folder, store):
        source, named = described.source(model, folder, data)
        asked = prepared.request(source, chips, data, _options(option, options), folder)
        asked = replace(asked, qat=qat, seed=seed, strict_calibration=strict_calibration, repair=repair)
        request = _judged(asked, require_npu, min_sqnr, max_drop)
        if output is not None:
            check_output(Path(output), overwrite, [source.model, request.data, request.test], store.cache)
        result = run_build(request, store, observer or Silent())
        shown = replace(request, source=replace(source, model=named.title), data=_shown(data), test=_shown(test))
        built = Build(replace(result, request=shown, notes=[*result.notes, *named.notes]))
        if output is not None:
            built.save(output, overwrite)
        return built


def check(
    model: Model,
    chips: str | Sequence[str],
    data: Samples | None = None,
    *,
    limit: int = 512,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    task: str = "",
    tokenizer: str | PathLike[str] = "",
    ckpt: str | PathLike[str] = "",
    trust_checkpoint: bool = False,
    arg: Mapping[str, Any] | None = None,
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Mapping[str, str] | None = None,
    layout: Mapping[str, str] | None = None,
    channels: Mapping[str, str] | None = None,
    output_names: Sequence[str] = (),
    fix: Mapping[str, Any] | None = None,
    option: Mapping[str, Any] | None = None,
    cache_dir: str | PathLike[str] | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> Checks:
    """Asks before compiling: will the model fit, will every operator run there? The names are those of `build`."""
    described = _Described(ckpt, trust_checkpoint, arg, shape, dtype, layout, channels, output_names, fix)
    prepared = _Prepared(None, limit, preprocess, task, tokenizer)
    with _files(cache_dir) as (folder, store):
        source, _ = described.source(model, folder, data)
        taken = RANDOM if data is None and source.kind != "zoo" else data
        request = prepared.request(source, chips, taken, _options(option, options), folder)
        return Checks(tuple(run_check(request, store, observer or Silent())))


@contextmanager
def _files(cache_dir: str | PathLike[str] | None) -> Iterator[tuple[Path, Store]]:
    """Gives a folder for what the caller holds in memory, and the store; errors do not speak of that folder."""
    with tempfile.TemporaryDirectory(prefix="anynpu-") as name:
        try:
            with cache_chosen(Path(cache_dir) if cache_dir else None):
                yield Path(name), Store()
        except AnyNpuError as error:
            error.message = error.message.replace(f"{name}/", "")
            error.args = (error.message,)
            raise


@dataclass(frozen=True)
class _Described:
    """What a model's file does not say, by the names of the flags."""

    ckpt: str | PathLike[str]
    trust_checkpoint: bool
    arg: Mapping[str, Any] | None
    shape: Mapping[str, Sequence[int]] | None
    dtype: Mapping[str, str] | None
    layout: Mapping[str, str] | None
    channels: Mapping[str, str] | None
    output_names: Sequence[str]
    fix: Mapping[str, Any] | None

    def source(self, model: Model, folder: Path, data: Samples | None) -> tuple[ModelSource, Named]:
        """Returns the model as a build reads it, and its file with the name that reports show."""
        shapes = {name: tuple(int(size) for size in dims) for name, dims in (self.shape or {}).items()}
        live = not isinstance(model, str | PathLike)
        named = model_file(model, folder, data, shapes, self.dtype or {}, tuple(self.output_names))
        source = ModelSource(
            model=named.path,
            checkpoint=str(self.ckpt),
            trust_checkpoint=self.trust_checkpoint,
            arguments=dict(self.arg or {}),
            shapes=shapes,
            dtypes={} if live else dict(self.dtype or {}),
            layouts=dict(self.layout or {}),
            channels={name: order.upper() for name, order in (self.channels or {}).items()},
            output_names=() if live else tuple(self.output_names),
            fixed={name: as_text(value) for name, value in (self.fix or {}).items()},
        )
        return source, named


@dataclass(frozen=True)
class _Prepared:
    """Samples, and what the model is for."""

    test: Samples | None
    limit: int
    preprocess: Preprocess | Mapping[str, Any] | None
    task: str
    tokenizer: str | PathLike[str]
    metric: str = ""

    def request(
        self,
        source: ModelSource,
        chips: str | Sequence[str],
        data: Samples | None,
        options: Mapping[str, str],
        folder: Path,
    ) -> Request:
        """Returns the request; samples that are arrays are written to the folder."""
        return Request(
            source=source,
            chips=_names(chips),
            data=samples_file(data, folder, "data"),
            test=samples_file(self.test, folder, "test"),
            limit=self.limit,
            preprocess=_preprocess(self.preprocess),
            task=self.task,
            tokenizer=str(self.tokenizer),
            metric=self.metric,
            options=options,
        )


def _names(chips: str | Sequence[str]) -> tuple[str, ...]:
    texts = [chips] if isinstance(chips, str) else list(chips)
    return tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))


def _preprocess(value: Preprocess | Mapping[str, Any] | None) -> Preprocess | None:
    if value is None or isinstance(value, Preprocess):
        return value
    plain = {name: list(each) if isinstance(each, tuple) else each for name, each in value.items()}
    return schema.from_dict(Preprocess, plain, "preprocess")


def _options(option: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options of compilers as -O takes them; a keyword that is spelled almost like one of ours is told."""
    known = list(inspect.signature(build).parameters)[:-1]
    for name in options:
        if hint := schema.near(name, known):
            raise ConfigError(f"{name}: no such keyword{hint}", "options of compilers can be given by `option` too")
    return {name: str(value) for name, value in {**(option or {}), **options}.items()}


def _judged(request: Request, require_npu: float | str, min_sqnr: float | None, max_drop: float | None) -> Request:
    """Returns the request with its gate, and what set each part of it."""
    stated = {"min_sqnr": min_sqnr, "max_drop": max_drop}
    values = {field.name: stated[setting_of(field.name)] for field in fields(Gate)}
    named = {"require_npu": None if require_npu == 1.0 else require_npu, **stated}
    return replace(
        request,
        require_npu=parse_share(require_npu) if isinstance(require_npu, str) else float(require_npu),
        gate=Gate(**{name: float(value) for name, value in values.items() if value is not None}),
        origins={name: f"the keyword {name}" for name, value in named.items() if value is not None},
    )


def _shown(samples: Samples | None) -> str:
    """Returns what a report calls samples."""
    if samples is None:
        return ""
    return str(samples) if isinstance(samples, str | PathLike) else "arrays"
