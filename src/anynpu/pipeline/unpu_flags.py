"""The formats of µNPU-Bench, and its flags: each is an option of one of the compilers behind a format."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from anynpu import plugins
from anynpu.errors import ConfigError, ToolFailed, Unsupported
from anynpu.schema import near

BIT_WIDTH = "bit_width"
BITS = ("1", "2", "4", "8", "16", "32")
FLAGS = {
    "--ckpt": "--model_ckpt",
    "--trust-checkpoint": "--trust_checkpoint",
    "--arg": "--model_module_args",
    "--shape": "--input_shape",
    "--layout": "--input_layout",
    "--data": "--data_sample",
    "--min-sqnr": "--min_sqnr",
    "--max-drop": "--max_drop",
    "--require-npu": "--require_npu",
    "-o": "--out_dir",
    "-t": "--target_hardware",
    "-m": "--model",
}
"""Flags of other verbs that a message may name, and what they are called here."""


@dataclass(frozen=True)
class Format:
    """A format: the compiler that makes it, those before it whose options are its flags too, and what it needs first.

    `chip` is ours that stands for the format where the same result serves every chip.
    """

    name: str
    compiler: str
    before: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    chip: str = ""

    @property
    def compilers(self) -> tuple[str, ...]:
        return (*self.before, self.compiler)

    @property
    def registered(self) -> bool:
        return self.compiler in plugins.names("targets")

    def hardware(self) -> tuple[str, ...]:
        """Returns the chips that it is built for."""
        chips = []
        for name in plugins.names("platforms"):
            with suppress(ConfigError):  # one chip's broken file must not hide the others
                if plugins.platform(name).target == self.compiler:
                    chips.append(name)
        return tuple(chips)


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format("onnx", "cpu", chip="cpu"),
        Format("tflm", "tflite", before=("litert",), needs=("onnx",), chip="tflm"),
        Format("ai8x", "ai8x", needs=("onnx",)),
        Format("vela", "vela", needs=("tflm",)),
        Format("eiq", "neutron", needs=("tflm",)),
        Format("cvi", "cvi", needs=("onnx",)),
    )
}
"""In the order in which they are built: each after what it needs."""

INSTEAD: Mapping[str, tuple[str, str]] = {
    "use_onnxsim": ("tflm", "the graph is always simplified, and checked against the model as it was"),
    "disable_group_convolution": ("tflm", "a convolution with groups is converted as it is; nothing is unfolded"),
    "enable_batchmatmul_unfold": ("tflm", "a product of two tensors stays one operator; nothing is unfolded"),
    "qat_policy": ("ai8x", "weights are quantised after the training; a policy is for ai8x-training, before it"),
}
"""Flags that steer another tool: their format, and what happens here instead, whatever their value."""


@dataclass(frozen=True)
class Place:
    """An option that a flag sets."""

    format: str
    compiler: str
    option: str
    kind: Any
    values: Mapping[str, str]

    @property
    def key(self) -> str:
        return f"{self.compiler}.{self.option}"

    def value(self, text: str) -> str:
        """Returns what the option is given for the text of the flag."""
        known = {name.lower(): value for name, value in self.values.items()}
        text = known.get(text.lower(), text)
        choices = [str(choice) for choice in _choices(self.kind)]
        hyphened = text.replace("_", "-").lower()
        return next((choice for choice in choices if choice.lower() == hyphened), text)


@dataclass(frozen=True)
class Flag:
    """A flag: the options that it sets, its help and what an option is without it."""

    name: str
    places: tuple[Place, ...]
    help: str
    default: Any

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.format for place in self.places))

    @property
    def boolean(self) -> bool:
        return all(place.kind is bool for place in self.places)

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(c) for place in self.places for c in _choices(place.kind)))

    @property
    def takes_none(self) -> bool:
        return "none" in self.choices or any(type(None) in get_args(place.kind) for place in self.places)


def closure(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the formats with all that they need, in the order in which they are built."""
    wanted = set(names)
    while more := {need for name in wanted for need in FORMATS[name].needs} - wanted:
        wanted |= more
    return tuple(name for name in FORMATS if name in wanted)


@functools.cache
def flags() -> Mapping[str, Flag]:
    """Returns every flag by name, read from the options of the compilers that are here."""
    known: dict[str, Flag] = {}
    # The float model is taken as it is: of the compiler cpu there is nothing to choose.
    owners = [(each.name, name) for each in FORMATS.values() if each.compiler != "cpu" for name in each.compilers]
    for format, compiler in owners:
        if compiler not in plugins.names("targets"):
            continue
        with suppress(ToolFailed):  # a plug-in that does not load takes its own flags with it, not the others
            form = plugins.load("targets", compiler).Options
            hints = get_type_hints(form)
            for field in dataclasses.fields(form):
                values = field.metadata.get("unpu_values", {})
                place = Place(format, compiler, field.name, hints[field.name], values)
                name = field.metadata.get("unpu") or field.name
                flag = known.get(name) or Flag(name, (), str(field.metadata.get("help", "")), field.default)
                known[name] = dataclasses.replace(flag, places=(*flag.places, place))
    return known


def parse_formats(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the formats by name, each once, in the order in which they are built."""
    chosen = [text.strip().lower() for text in texts if text.strip()]
    for name in chosen:
        if name not in FORMATS:
            raise ConfigError(f"--target_format {name}: no such format{near(name, FORMATS)}", _listed(FORMATS))
    if not chosen:
        raise ConfigError("no format is named", _listed(FORMATS, "give --target_format; there is"))
    return tuple(name for name in FORMATS if name in chosen)


def settings(typed: Mapping[str, str], formats: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the options that the flags set, and a sentence for every flag that sets none."""
    chosen = closure(formats)
    options: dict[str, str] = {}
    notes = []
    for name, text in typed.items():
        if name in INSTEAD:
            owner, sentence = INSTEAD[name]
            notes.append(f"--{name}: {sentence}" if owner in chosen else _elsewhere(name, (owner,)))
            continue
        flag = flags()[name]
        if text == "None" and not flag.takes_none:  # the default that µNPU-Bench documents: as if it were not given
            continue
        places = [place for place in flag.places if place.format in chosen]
        for place in places:
            options[place.key] = place.value(text)
        if not places:
            notes.append(_elsewhere(name, flag.formats))
        elif any(text.lower() in place.values and place.value(text) == "none" for place in places):
            notes.append(f"--{name} {text}: the chip's own is used")
    return options, notes


def spelled_here(text: str) -> str:
    """Returns how flags of other verbs that a message names are spelled here, such as "here --data is --data_sample",
    or an empty string."""
    words = [word.strip("`'\"().,;:") for word in text.split()]
    known = {word: FLAGS[word] for word in words if word in FLAGS}
    for word, option in itertools.pairwise(words):
        if word == "-O" and (flag := _flag_of(option)):
            known[f"-O {option}..." if option.endswith("=") else f"-O {option}"] = flag
    listed = ", ".join(f"{flag} is {ours}" for flag, ours in known.items())
    return f"here {listed}" if listed else ""


def _flag_of(option: str) -> str:
    """Returns the flag that sets an option of -O, with its value where one is named, or an empty string."""
    key, sign, value = option.partition("=")
    compiler, _, name = key.rpartition(".")
    for flag, known in flags().items():
        for place in known.places:
            if place.option == name and compiler in ("", place.compiler):
                back = {theirs: typed for typed, theirs in place.values.items()}
                return f"--{flag}" + (f" {back.get(value, value) or '...'}" if sign else "")
    return ""


def bits(width: str, format: str, dtypes: Iterable[str] = ()) -> dict[str, str]:
    """Returns the options that make a format of that bit width, or raises Unsupported with those that it has."""
    if FORMATS[format].compiler == "cpu":
        return {"cpu.activations": "float32"}  # what the others are made from
    flag = flags().get(BIT_WIDTH)
    places = [place for place in flag.places if place.format in closure((format,))] if flag else []
    known = tuple(dtypes)
    options = {}
    for place in places:
        # What the quantiser can make is not yet what the chip computes with.
        widths = place.values or {str(choice): str(choice) for choice in _choices(place.kind)}
        lacking = {"int8", "uint8", "int16", "float32"}.difference(known) if known else ()
        able = [b for b in BITS if b in widths and widths[b] not in lacking]
        if width not in able:
            raise Unsupported(
                f"{format} cannot be built with {width} bits", hint=f"give --{BIT_WIDTH} {' or '.join(able)}"
            )
        options[place.key] = widths[width]
    if not places and width != "8":
        raise Unsupported(f"{format} cannot be built with {width} bits", hint=f"give --{BIT_WIDTH} 8")
    return options


def _choices(kind: Any) -> tuple[Any, ...]:
    """Returns the values of a literal type, wherever in the type it stands."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for inner in get_args(kind) for choice in _choices(inner))


def _elsewhere(name: str, formats: Iterable[str]) -> str:
    return f"--{name} is of {' and '.join(formats)}, which is not among --target_format: not used"


def _listed(names: Iterable[str], before: str = "there is") -> str:
    return f"{before} {', '.join(names)}"
