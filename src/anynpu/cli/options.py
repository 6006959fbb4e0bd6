"""Flags that verbs share, and how they, the environment and a configuration file become one request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click

from anynpu import schema
from anynpu.cli.command import origin_of
from anynpu.cli.flags import TASK, Command, literal, pairs, preprocess, shape_of
from anynpu.errors import ConfigError
from anynpu.measure.threshold import setting_of
from anynpu.measure.verify import Gate
from anynpu.pipeline.request import Request, parse_share
from anynpu.source.load import FORMS, ModelSource, as_text
from anynpu.tasks.images import Preprocess


@dataclass(frozen=True)
class FileConfig:
    """What a configuration file may say; the names are those of the long flags."""

    model: str = ""
    target: tuple[str, ...] = ()
    output: str = ""
    data: str = ""
    test: str = ""
    limit: int | None = None
    ckpt: str = ""
    trust_checkpoint: bool | None = None
    arg: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: Mapping[str, str] = field(default_factory=dict)
    layout: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()
    fix: Mapping[str, Any] = field(default_factory=dict)
    option: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | None = None
    task: str = ""
    tokenizer: str = ""
    metric: str = ""
    require_npu: str = ""
    min_sqnr: float | None = None
    max_drop: float | None = None


def _many(*flags: str, help: str, metavar: str = "NAME=VALUE") -> Callable[[Command], Command]:
    return click.option(*flags, multiple=True, metavar=metavar, help=help)


MODEL = (
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="net.onnx, net.tflite, file.py:Class, package.module:factory or zoo:NAME.",
    ),
    click.option(
        "--ckpt", metavar="FILE", help="Checkpoint of a PyTorch model: a state dict, or a dict that holds one."
    ),
    click.option(
        "--trust-checkpoint", is_flag=True, help="Unpickle the checkpoint. It can run any code: only your own."
    ),
    _many("--arg", help="Constructor argument of a PyTorch model. Repeat for more."),
    _many("--shape", metavar="NAME=1,3,32,32", help="Shape of an input. Repeat for more."),
    _many("--dtype", help="Type of an input of a PyTorch model (float32)."),
    _many("--layout", metavar="NAME=NCHW", help="Layout of a tensor, where the model's operators do not tell."),
    _many("--channels", metavar="NAME=RGB", help="Colour order of an image input."),
    click.option("--output-names", metavar="A,B", help="Names for the outputs of a PyTorch model."),
    _many("--fix", help="Value of an input of an ONNX file that never changes: sr=16000. Repeat for more."),
    click.option("-c", "--config", type=click.Path(path_type=Path), help="TOML file with any of these settings."),
)
DATA = (
    _many(
        "-t",
        "--target",
        metavar="CHIP[,CHIP...]",
        help="Chips to build for; `anynpu targets` lists them. Repeat for more.",
    ),
    click.option(
        "--data",
        metavar="SOURCE",
        help="Calibration samples: x.npy, x.npz, a folder of images, texts.txt, file.py:generator, or random:64.",
    ),
    click.option(
        "--test", metavar="SOURCE", help="Held-out samples; without it every fifth sample of --data is held out."
    ),
    click.option("--limit", type=click.IntRange(1), default=512, show_default=True, help="Most samples to take."),
    _many(
        "-P", "--preprocess", help="How images become inputs: size=96x96, resize=stretch, channels=RGB, mean=0.5, ..."
    ),
    *TASK,
    _many("-O", "--option", help="Option of a compiler: method=mse, activations=int16, vela.optimise=size, ..."),
)
GATE = (
    click.option("--require-npu", metavar="SHARE", help="Least share on the NPU (100%); less ends with status 1."),
    click.option("--min-sqnr", type=float, metavar="DB", help="Least SQNR against the float model (10)."),
    click.option("--max-drop", type=float, metavar="POINTS", help="Most points of task accuracy to lose (5)."),
    click.option("--metric", metavar="NAME", help="Task accuracy when the samples have labels: top1, ..."),
)


def settings(ctx: click.Context, form: type[Any] = FileConfig) -> dict[str, Any]:
    """Returns every flag, taken from the configuration file where neither command line nor environment says it.

    Of settings that are a table, such as -O, the file's entries stay that no flag names. `origins` says of every
    setting that is not the default where it came from.
    """
    given = dict(ctx.params)
    path = given.pop("config", None)
    given["origins"] = {name: origin for name in given if (origin := origin_of(ctx, name))}
    if path is None:
        return given
    file: Any = schema.from_dict(form, schema.read_toml(path), str(path))
    for name, value in vars(file).items():
        if name not in given or value in (None, "", (), {}):
            continue
        if name not in given["origins"]:
            given[name] = value
            given["origins"][name] = str(path)
        elif isinstance(value, Mapping):
            given[name] = {**value, **pairs(given["origins"][name], given[name])}
        elif isinstance(value, Preprocess):
            given[name] = preprocess(given[name], schema.to_dict(value))
    return given


def model_source(given: Mapping[str, Any]) -> ModelSource:
    """Returns the model that the flags name."""
    if not given.get("model"):
        raise ConfigError("no model is named", FORMS.replace("give", "give -m", 1))
    names = given.get("output_names") or ()
    return ModelSource(
        model=given["model"],
        checkpoint=given.get("ckpt") or "",
        trust_checkpoint=bool(given.get("trust_checkpoint")),
        arguments={k: literal(v) for k, v in _named("--arg", given.get("arg")).items()},
        shapes={k: shape_of(k, v) for k, v in _named("--shape", given.get("shape")).items()},
        dtypes=_named("--dtype", given.get("dtype")),
        layouts=_named("--layout", given.get("layout")),
        channels={k: v.upper() for k, v in _named("--channels", given.get("channels")).items()},
        output_names=tuple(names.split(",")) if isinstance(names, str) else tuple(names),
        fixed={k: as_text(v) for k, v in _named("--fix", given.get("fix")).items()},
    )


def request(given: Mapping[str, Any]) -> Request:
    """Returns the whole request that the flags make."""
    share = given.get("require_npu")
    stated = {f.name: given[setting_of(f.name)] for f in fields(Gate) if given.get(setting_of(f.name)) is not None}
    return Request(
        source=model_source(given),
        chips=distinct(given.get("target") or ()),
        data=given.get("data") or "",
        test=given.get("test") or "",
        limit=512 if given.get("limit") is None else given["limit"],
        preprocess=preprocess(given.get("preprocess")),
        task=given.get("task") or "",
        tokenizer=given.get("tokenizer") or "",
        metric=given.get("metric") or "",
        options={k: str(v) for k, v in _named("-O", given.get("option")).items()},
        require_npu=1.0 if not share else parse_share(share),
        gate=Gate(**stated),
        origins=_gate_origins(given.get("origins") or {}),
    )


def _gate_origins(origins: Mapping[str, str]) -> dict[str, str]:
    names = ("require_npu", *(setting_of(f.name) for f in fields(Gate)))
    return {name: origins[name] for name in names if name in origins}


def distinct(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names in texts that commas separate, each once; one that is named twice is said."""
    parts = [texts] if isinstance(texts, str) else texts
    names = [name.strip() for text in parts for name in text.split(",") if name.strip()]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            click.echo(f"anynpu: {name} is named {names.count(name)} times: it is taken once", err=True)
    return tuple(dict.fromkeys(names))


def _named(flag: str, value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else pairs(flag, tuple(value or ()))
