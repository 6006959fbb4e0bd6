"""anynpu.build and anynpu.check: a model for one or more chips, and what came of it."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from anynpu import schema
from anynpu.api.keywords import BuildKeywords, CheckKeywords, ModelKeywords, OptionKeywords, spelled_out
from anynpu.api.live import Named, Samples, model_file, samples_file
from anynpu.api.result import Build, Checks
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.files import cache_chosen
from anynpu.pipeline.build import build as run_build
from anynpu.pipeline.check import check as run_check
from anynpu.pipeline.output import check_output
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.request import Request
from anynpu.quantize.calibration import Preprocess
from anynpu.source.load import ModelSource, as_text
from anynpu.store import Store

if TYPE_CHECKING:
    from anynpu.api.live import Model

RANDOM = "random:4"
"""What `check` calibrates with where no samples are given: ranges change no operator."""


@spelled_out(BuildKeywords)
def build(
    model: Model, chips: str | Sequence[str], data: Samples | None = None, **keywords: Unpack[BuildKeywords]
) -> Build:
    """Exports, quantises, compiles, executes and compares a model for one or more chips.

    `model` is what -m takes, a live `torch.nn.Module` or an `onnx.ModelProto`; `data` and `test` are what --data and
    --test take, or arrays. The other names are those of the flags of `anynpu build`; None leaves one out. Options of
    compilers (-O) are keywords (method="mse") or entries of `option` ({"vela.optimise": "size"}). `output` is written
    as -o writes it.

    What concerns the model itself raises. What concerns one chip is that chip's result; `Build.require()` raises it.
    """
    stated = cast(BuildKeywords, _without_none(keywords))
    output, overwrite = stated.get("output"), bool(stated.get("overwrite"))
    with _files(stated.get("cache_dir")) as (folder, store):
        source, named = _source(stated, model, folder, data)
        request = _request(stated, source, chips, data, folder)
        if output is not None:
            check_output(Path(output), overwrite, [source.model, request.data, request.test], store.cache)
        result = run_build(request, store, stated.get("observer") or Silent())
        shown = replace(
            request, source=replace(source, model=named.title), data=_shown(data), test=_shown(stated.get("test"))
        )
        built = Build(replace(result, request=shown, notes=[*result.notes, *named.notes]))
        if output is not None:
            built.save(output, overwrite)
        return built


@spelled_out(CheckKeywords)
def check(
    model: Model, chips: str | Sequence[str], data: Samples | None = None, **keywords: Unpack[CheckKeywords]
) -> Checks:
    """Asks before compiling: will the model fit, will every operator run there? The names are those of `build`."""
    stated = cast(BuildKeywords, _without_none(keywords))
    with _files(stated.get("cache_dir")) as (folder, store):
        source, _ = _source(stated, model, folder, data)
        taken = RANDOM if data is None and source.kind != "zoo" else data
        request = _request(stated, source, chips, taken, folder)
        return Checks(tuple(run_check(request, store, stated.get("observer") or Silent())))


def _without_none(keywords: Mapping[str, object]) -> dict[str, object]:
    """Returns the keywords that say something; one that is spelled almost like one of ours raises."""
    known = {**inspect.signature(build).parameters}
    known.pop("options")
    for name in keywords:
        if name not in known and (hint := schema.near(name, known)):
            raise ConfigError(f"{name}: no such keyword{hint}", "options of compilers can be given by `option` too")
    return {name: value for name, value in keywords.items() if value is not None}


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


def _source(stated: ModelKeywords, model: Model, folder: Path, data: Samples | None) -> tuple[ModelSource, Named]:
    """Returns the model as a build reads it, and its file with the name that reports show."""
    shapes = {name: tuple(int(size) for size in dims) for name, dims in (stated.get("shape") or {}).items()}
    dtypes, outputs = dict(stated.get("dtype") or {}), tuple(stated.get("output_names") or ())
    live = not isinstance(model, str | PathLike)
    named = model_file(model, folder, data, shapes, dtypes, outputs)
    source = ModelSource(
        model=named.path,
        checkpoint=str(stated.get("ckpt") or ""),
        trust_checkpoint=bool(stated.get("trust_checkpoint")),
        arguments=dict(stated.get("arg") or {}),
        shapes=shapes,
        dtypes={} if live else dtypes,
        layouts=dict(stated.get("layout") or {}),
        channels={name: order.upper() for name, order in (stated.get("channels") or {}).items()},
        output_names=() if live else outputs,
        fixed={name: as_text(value) for name, value in (stated.get("fix") or {}).items()},
        end_at=tuple(stated.get("end_at") or ()),
        keep_outputs=bool(stated.get("keep_outputs")),
    )
    return source, named


def _request(
    stated: BuildKeywords, source: ModelSource, chips: str | Sequence[str], data: Samples | None, folder: Path
) -> Request:
    """Returns the request; samples that are arrays are written to the folder."""
    same = ("limit", "task", "metric", "qat", "seed", "repair", "keep_failed", "strict_calibration")
    texts = [chips] if isinstance(chips, str) else list(chips)
    # What -O takes: `option`, and the keywords that are not flags
    flags = {*BuildKeywords.__annotations__} - {*OptionKeywords.__annotations__} | {"option"}
    keywords = {name: value for name, value in stated.items() if name not in flags}
    values = {**(stated.get("option") or {}), **keywords}
    preprocess = stated.get("preprocess")
    if preprocess is not None and not isinstance(preprocess, Preprocess):
        plain = {name: list(each) if isinstance(each, tuple) else each for name, each in preprocess.items()}
        preprocess = schema.from_dict(Preprocess, plain, "preprocess")
    request = Request(
        source=source.as_given if stated.get("repair") is False else source,
        chips=tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip())),
        data=samples_file(data, folder, "data"),
        test=samples_file(stated.get("test"), folder, "test"),
        preprocess=preprocess,
        tokenizer=str(stated.get("tokenizer") or ""),
        options={name: ",".join(v) if isinstance(v, tuple | list) else str(v) for name, v in values.items()},
        **{name: value for name, value in stated.items() if name in same},  # type: ignore[arg-type]  # by their names
    )
    origins = {name: f"the keyword {name}" for name in stated}
    return request.judged(stated.get("require_npu"), stated.get("min_sqnr"), stated.get("max_drop"), origins)


def _shown(samples: Samples | None) -> str:
    """Returns what a report calls samples."""
    if samples is None:
        return ""
    return str(samples) if isinstance(samples, str | PathLike) else "arrays"
