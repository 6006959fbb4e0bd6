"""Flags of the verbs that import, build or check a model, and the request that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from anynpu.cli.flags import read_preprocess, shape_of
from anynpu.cli.verb import flag, table
from anynpu.errors import ConfigError
from anynpu.pipeline.request import Request
from anynpu.schema import Json, literal
from anynpu.source.load import FORMS, ModelSource, as_text
from anynpu.tasks.images import Preprocess


class Names(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no such argument
    """Names that commas separate."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return tuple(value.split(",")) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """A model, and what its file does not say."""

    model: str = flag(
        "net.onnx, net.tflite, file.py:Class, package.module:factory or zoo:NAME.", "", "-m", metavar="MODEL"
    )
    ckpt: str = flag("Checkpoint of a PyTorch model: a state dict, or a dict that holds one.", "", metavar="FILE")
    trust_checkpoint: bool = flag("Unpickle the checkpoint. That can run any code: do it with your own only.", False)
    arg: Mapping[str, Json] = table(
        "Constructor argument of a PyTorch model. Repeat for more.", "--arg", lambda name, text: literal(text)
    )
    shape: Mapping[str, tuple[int, ...]] = table(
        "Shape of an input. Repeat for more.", "--shape", shape_of, metavar="NAME=1,3,32,32"
    )
    dtype: Mapping[str, str] = table("Type of an input of a PyTorch model (float32).", "--dtype")
    layout: Mapping[str, str] = table(
        "Layout of a tensor, if the model's operators do not reveal it.", "--layout", metavar="NAME=NCHW"
    )
    channels: Mapping[str, str] = table("Colour order of an image input.", "--channels", metavar="NAME=RGB")
    output_names: tuple[str, ...] = flag("Names for the outputs of a PyTorch model.", (), metavar="A,B", type=Names())
    fix: Mapping[str, Json] = table("Constant value of an input of an ONNX file: sr=16000. Repeat for more.", "--fix")
    end_at: tuple[str, ...] = flag(
        "Tensors that an ONNX or TFLite file ends at: what lies behind is left out.", (), metavar="A,B", type=Names()
    )
    keep_outputs: bool = flag(
        "Leave outputs whole whose parts differ too much in range for one scale; --no-repair does too.", False
    )
    config: Path | None = flag("TOML file with any of these settings.", None, "-c")

    def source(self) -> ModelSource:
        """Returns the model that the flags name."""
        if not self.model:
            raise ConfigError("no model is named", FORMS.replace("give", "give -m", 1))
        return ModelSource(
            model=self.model,
            checkpoint=self.ckpt,
            trust_checkpoint=self.trust_checkpoint,
            arguments=self.arg,
            shapes={name: shape_of(name, dims) for name, dims in self.shape.items()},
            dtypes=self.dtype,
            layouts=self.layout,
            channels={name: order.upper() for name, order in self.channels.items()},
            output_names=self.output_names,
            fixed={name: as_text(value) for name, value in self.fix.items()},
            end_at=self.end_at,
            keep_outputs=self.keep_outputs,
        )


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """Chips, samples, and what the model is for."""

    target: tuple[str, ...] = flag(
        "Chips to build for; `anynpu targets` lists them. Repeat for more.",
        (),
        "-t",
        metavar="CHIP[,CHIP...]",
    )
    data: str = flag(
        "Calibration samples: x.npy, x.npz, a folder of images, texts.txt, file.py:generator, or random:64.",
        "",
        metavar="SOURCE",
    )
    test: str = flag("Held-out samples; without it every fifth sample of --data is held out.", "", metavar="SOURCE")
    limit: int = flag("Maximum number of samples.", Request.limit, minimum=1, shown=True)
    preprocess: Preprocess | None = flag(
        "How images become inputs: size=96x96, resize=stretch, channels=RGB, mean=0.5, ...",
        None,
        "-P",
        metavar="NAME=VALUE",
        read=read_preprocess,
    )
    task: str = flag("What the model is for: yolov8, clip-text, ... or card.toml.", "", metavar="CARD")
    tokenizer: str = flag("The tokenizer of a task that reads text.", "", metavar="FILE")
    option: Mapping[str, Json] = table(
        "Option of a compiler: method=mse, activations=int16, vela.optimise=size, ...", "-O"
    )

    def request(self, source: ModelSource) -> Request:
        """Returns the request that the flags make of a model, with the default gate."""
        return Request(
            source=source,
            chips=distinct(self.target),
            data=self.data,
            test=self.test,
            limit=self.limit,
            preprocess=self.preprocess,
            task=self.task,
            tokenizer=self.tokenizer,
            options={name: str(value) for name, value in self.option.items()},
        )


@dataclass(frozen=True, kw_only=True)
class GateFlags:
    """What a result must reach; where a setting is not stated, the gate's own default holds."""

    require_npu: str = flag("Minimum share on the NPU (100%); less ends with status 1.", "", metavar="SHARE")
    min_sqnr: float | None = flag("Minimum SQNR against the float model (10).", None, metavar="DB")
    max_drop: float | None = flag("Maximum loss of task accuracy in points (5).", None, metavar="POINTS")
    metric: str = flag("Task accuracy when the samples have labels: top1, ...", "", metavar="NAME")
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each setting came from: a flag, a file or an environment variable."""

    def judged(self, request: Request) -> Request:
        """Returns a request with this gate."""
        judged = request.judged(self.require_npu, self.min_sqnr, self.max_drop, self.origins)
        return replace(judged, metric=self.metric)


def distinct(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names in texts that commas separate, each once; one that is named twice gets a note."""
    parts = [texts] if isinstance(texts, str) else texts
    names = [name.strip() for text in parts for name in text.split(",") if name.strip()]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            click.echo(f"anynpu: {name} is named {names.count(name)} times: it is taken once", err=True)
    return tuple(dict.fromkeys(names))
