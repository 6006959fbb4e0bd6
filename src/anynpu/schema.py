"""Strict reading of TOML and JSON into frozen dataclasses, and back.

Every message names the place and, for an unknown name, the nearest known one:

    mcxn947.toml: memory.sram_kb: no such setting (did you mean 'sram_kib'?)
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from anynpu.errors import ConfigError, IntegrityError

T = TypeVar("T")

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:
    Json = Any  # what reads a dataclass's types cannot follow one that holds itself
JsonObject: TypeAlias = dict[str, Json]
"""Data that JSON can hold, for writing; what is read has a dataclass, or a TypedDict where the file is not ours."""


def option(default: Any, help: str, unpu: str = "", unpu_values: Mapping[str, str] = {}) -> Any:
    """A field of an options dataclass: its default and the sentence that the command line and the docs show.

    `unpu` is its flag on µNPU-Bench's command line where that is spelled otherwise, `unpu_values` the values of that
    flag that mean another one here (`anynpu unpu-bench`).
    """
    return dataclasses.field(default=default, metadata={"help": help, "unpu": unpu, "unpu_values": dict(unpu_values)})


class Whole:
    """A form whose JSON has every field, those that hold their default too."""


class Throughout(Whole):
    """A form that is whole, and so is everything in it."""


def about(
    help: str = "",
    default: Any = dataclasses.MISSING,
    minimum: int | None = None,
    optional: bool = False,
    key: str = "",
) -> Any:
    """A field of a record with the sentence that its published schema shows.

    An `optional` one is left out of the JSON of a whole record where it holds its default. `key` is its name in JSON
    where that is a word of Python.
    """
    metadata = {"help": help, "minimum": minimum, "optional": optional, "key": key}
    return dataclasses.field(default=default, metadata=metadata)


def _key(field: dataclasses.Field[Any]) -> str:
    return field.metadata.get("key") or field.name


def rest() -> Any:
    """A field that holds what the JSON of a form says in addition to its fields."""
    return dataclasses.field(default_factory=dict, metadata={"rest": True})


MOST_NEAR = 4


def literal(value: Any) -> Any:
    """Returns a number, a truth value or text as a user wrote it."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return {"true": True, "false": False}.get(value.lower(), value)


def near(name: str, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for the known names that `name` is a part of (those that lack one letter alone, if
    there are any), or else for those that begin with words like it, or else for the nearest one, or an empty string."""
    names = sorted(known) if isinstance(known, set | frozenset) else list(dict.fromkeys(known))
    part = letters(name)
    longer = [each for each in names if part in letters(each)] if len(part) > 2 else []
    longer = [each for each in longer if len(letters(each)) <= len(part) + 1] or longer
    return did_you_mean(longer or _like(name, names))


def _like(name: str, names: Sequence[str]) -> list[str]:
    """Returns the name that is nearly the same, or else those whose first words are like it, or else the nearest."""
    lowered, starts = {each.lower(): [each] for each in names}, dict[str, list[str]]()
    for each in names:
        words = re.split(r"[\W_]+", each.lower())
        for count in range(1, len(words) + 1):
            starts.setdefault("".join(words[:count]), []).append(each)
    for known, text, cutoff in (
        (lowered, name.lower(), 0.85),
        (starts, letters(name), 0.75),
        (lowered, name.lower(), 0.6),
    ):
        if nearest := difflib.get_close_matches(text, known, n=1, cutoff=cutoff):
            return known[nearest[0]]
    return []


def did_you_mean(names: Sequence[str]) -> str:
    """Returns " (did you mean 'x' or 'y'?)", or an empty string for no names; of many, how many more there are."""
    many = len(names) > MOST_NEAR + 1  # a single one more is named too
    shown = [f"'{name}'" for name in (names[:MOST_NEAR] if many else names)]
    if many:
        shown.append(f"one of {len(names) - MOST_NEAR} more")
    text = " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return f" (did you mean {text}?)" if text else ""


def letters(word: str) -> str:
    """Returns the letters and digits of a name, small: what is left when its case and punctuation do not matter."""
    return "".join(filter(str.isalnum, word.lower()))


_hints: Callable[[Any], Mapping[str, Any]] = functools.cache(get_type_hints)
"""The types of the fields of a class; every annotation is evaluated to find them."""


def from_dict(cls: type[T], data: Any, place: str) -> T:
    """Returns `data` as the dataclass `cls`; anything unknown, missing or mistyped raises ConfigError."""
    value: T = _record(cls, data, place, "")
    return value


def read_as(kind: Any, data: Any, place: str) -> Any:
    """Returns `data` as a value of any type that a field of a dataclass may have."""
    return _value(kind, data, place, "")


def settings_of(cls: type[Any], names: Iterable[str], data: Mapping[str, object], place: str) -> dict[str, object]:
    """Returns what `data` says of the fields of `cls` with these names, none of which has to be there; anything unknown
    or mistyped raises ConfigError."""
    hints, known = _hints(cls), tuple(names)
    for name in data:
        if name not in known:
            raise ConfigError(f"{place}: {name}: no such setting{near(str(name), known)}")
    return {name: _value(hints[name], item, place, name) for name, item in data.items()}


def to_dict(value: Any, whole: bool = False) -> Any:
    """Returns plain JSON data for a dataclass; fields that hold their default are left out unless it is `whole`."""
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if dataclasses.is_dataclass(kind):
        whole = whole or isinstance(value, Throughout)
        every, data, more = whole or isinstance(value, Whole), {}, {}
        for field, key, rest, optional in _written(kind):
            held = getattr(value, field.name)
            if rest:
                more = to_dict(held, whole)
            elif (every and not optional) or not _is_default(field, held):
                data[key] = held if type(held) in _JSON_TYPES else to_dict(held, whole)
        return {**data, **more}
    if isinstance(value, Mapping):
        return {str(k): to_dict(v, whole) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [v if type(v) in _JSON_TYPES else to_dict(v, whole) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value


@functools.cache
def _written(cls: type[Any]) -> tuple[tuple[dataclasses.Field[Any], str, bool, bool], ...]:
    """Returns the fields of a dataclass, each with its key in JSON, whether it is the rest, and whether optional."""
    fields = dataclasses.fields(cls)
    return tuple((f, _key(f), bool(f.metadata.get("rest")), bool(f.metadata.get("optional"))) for f in fields)


def from_json(cls: type[T], data: Mapping[str, object]) -> T:
    """Returns JSON that the schema of `cls` allows as that dataclass. A missing field holds its default; what has no
    field goes to the form's `rest`, or is left out where it has none."""
    value: T = _loaded(cls, data)
    return value


@functools.cache
def _form(cls: type[Any]) -> tuple[Mapping[str, tuple[str, Any]], str]:
    """Returns the fields of a form by their key in JSON, each with its name and type, and the name of its rest."""
    hints, fields = _hints(cls), dataclasses.fields(cls)
    more = next((field.name for field in fields if field.metadata.get("rest")), "")
    return {_key(field): (field.name, hints[field.name]) for field in fields if field.name != more}, more


def _loaded(kind: Any, data: Any) -> Any:
    if data is None:
        return None
    if get_origin(kind) in (Union, types.UnionType):
        kind = next((each for each in get_args(kind) if _holds(each, data)), object)
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(data, Mapping) and dataclasses.is_dataclass(kind):
        known, more = _form(kind)  # type: ignore[arg-type]  # it is a class, not an instance
        values = {known[key][0]: _loaded(known[key][1], value) for key, value in data.items() if key in known}
        others = {key: value for key, value in data.items() if key not in known}
        return kind(**values, **({more: others} if more else {}))  # type: ignore[operator]
    if origin is tuple:
        return tuple(data) if inner[0] in _JSON_TYPES else tuple(_loaded(inner[0], each) for each in data)
    if origin in (dict, Mapping):
        return {name: _loaded(inner[1], each) for name, each in data.items()}
    return int(data) if kind is int and isinstance(data, float) else data


def _holds(kind: Any, data: Any) -> bool:
    """Whether data of this form is meant by one part of a union."""
    if isinstance(data, Mapping):
        return dataclasses.is_dataclass(kind) or get_origin(kind) in (dict, Mapping)
    if isinstance(data, list | tuple):
        return get_origin(kind) is tuple
    return kind in _JSON_TYPES and isinstance(data, kind)


_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def json_schema(kind: Any) -> JsonObject:
    """Returns the JSON Schema of a type; a field with a default may be missing, and there may be others."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return {}
    if origin is Literal:
        return {"type": "string", "enum": list(inner)} if len(inner) > 1 else {"const": inner[0]}
    if origin in (Union, types.UnionType):
        parts = [json_schema(each) for each in inner]
        merged: JsonObject = {name: value for part in parts for name, value in part.items()}
        return {**merged, "type": [part["type"] for part in parts]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        fields = [field for field in dataclasses.fields(kind) if not field.metadata.get("rest")]
        properties = {}
        for field in fields:
            help, minimum = field.metadata.get("help"), field.metadata.get("minimum")
            more = ({"description": help} if help else {}) | ({} if minimum is None else {"minimum": minimum})
            properties[_key(field)] = {**json_schema(hints[field.name]), **more}
        missing = dataclasses.MISSING
        required = [_key(field) for field in fields if field.default is missing and field.default_factory is missing]
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
    if origin is tuple:
        return {"type": "array", **_unless_any("items", inner[0])}
    if origin in (dict, Mapping):
        return {"type": "object", **_unless_any("additionalProperties", inner[1])}
    return {"type": _JSON_TYPES[kind]}


def _unless_any(name: str, kind: Any) -> JsonObject:
    inner = json_schema(kind)
    return {name: inner} if inner else {}


def canonical_json(value: Any) -> str:
    """Returns the one JSON text that equal data always gives."""
    return plain_json(to_dict(value))


def plain_json(data: Any) -> str:
    """Returns the one JSON text of data that is plain already."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Returns the sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def read_toml(path: Path) -> dict[str, object]:
    """Returns the parsed TOML file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # a number too long and a table too deep are no TOMLDecodeError
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def parse_json(text: str) -> Any:
    """Returns parsed JSON; NaN, infinities and numbers beyond all others, which Python would take, raise ValueError."""
    return json.loads(text, parse_constant=_number, parse_float=_number)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a number")
    return value


def read_json(path: Path) -> Any:
    """Returns the parsed JSON file."""
    try:
        return parse_json(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: not valid JSON: {error}") from None


def parse_text(kind: Any, text: str, place: str) -> Any:
    """Returns what the user typed for a value of type `kind` (the right side of `-O name=value`)."""
    origin = get_origin(kind)
    choices = get_args(kind) if origin in (Union, types.UnionType) else (kind,)
    if bool in choices and text.lower() in ("true", "false", "yes", "no", "on", "off"):
        return text.lower() in ("true", "yes", "on")
    for number in (int, float):
        if number in choices:
            try:
                return number(text)
            except ValueError:
                continue
    if type(None) in choices and text.lower() == "none":
        return None
    if get_origin(kind) is tuple:
        return _value(kind, [each.strip() for each in text.split(",") if each.strip()], place, "")
    return _value(kind, text, place, "")


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default) and type(value) is type(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _at(place: str, key: str) -> str:
    return f"{place}: {key}" if key else place


def _record(cls: Any, data: Any, place: str, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{_at(place, key)}: a table was expected, not {_describe(data)}")
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    prefix = f"{key}." if key else ""
    for name in data:
        if name not in fields:
            raise ConfigError(f"{place}: {prefix}{name}: no such setting{near(str(name), fields)}")
    values = {name: _value(hints[name], item, place, prefix + name) for name, item in data.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{place}: {prefix}{name}: is missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{_at(place, key)}: {error.message}", error.hint) from None


def _value(kind: Any, data: Any, place: str, key: str) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        choices = get_args(kind)
        for choice in choices:
            if data == choice and type(data) is type(choice):  # True equals 1, and is not meant by it
                return choice
        lowered = {str(c).lower(): c for c in choices}
        if isinstance(data, str) and data.lower() in lowered:
            return lowered[data.lower()]
        names = ", ".join(map(str, choices))
        raise ConfigError(f"{_at(place, key)}: {data!r} is not one of {names}{near(str(data), lowered)}")
    if origin in (Union, types.UnionType):
        return _union(get_args(kind), data, place, key)
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, place, key)
    if origin in (tuple, list):
        return _sequence(kind, data, place, key)
    if origin in (dict, Mapping):
        if not isinstance(data, Mapping):
            raise ConfigError(f"{_at(place, key)}: a table was expected, not {_describe(data)}")
        inner = get_args(kind)[1]
        return {str(k): _value(inner, v, place, f"{key}.{k}") for k, v in data.items()}
    if kind is Any or kind is object:
        return data
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        try:
            value = float(data)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise ConfigError(f"{_at(place, key)}: a finite number was expected")
        return value
    if isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise ConfigError(f"{_at(place, key)}: {_NAMES.get(kind, kind)} was expected, not {_describe(data)}")


def _union(choices: tuple[Any, ...], data: Any, place: str, key: str) -> Any:
    if data is None and type(None) in choices:
        return None
    errors = []
    for kind in choices:
        if kind is not type(None):
            try:
                return _value(kind, data, place, key)
            except ConfigError as error:
                errors.append(error)
    raise errors[0]


def _sequence(kind: Any, data: Any, place: str, key: str) -> Any:
    if not isinstance(data, list | tuple):
        raise ConfigError(f"{_at(place, key)}: a list was expected, not {_describe(data)}")
    inner = get_args(kind)
    if get_origin(kind) is tuple and len(inner) > 1 and inner[1] is not Ellipsis:
        if len(inner) != len(data):
            raise ConfigError(f"{_at(place, key)}: {len(inner)} values were expected, not {len(data)}")
        return tuple(_value(k, v, place, f"{key}[{i}]") for i, (k, v) in enumerate(zip(inner, data, strict=True)))
    items = [_value(inner[0], v, place, f"{key}[{i}]") for i, v in enumerate(data)]
    return tuple(items) if get_origin(kind) is tuple else items


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}


def _describe(data: Any) -> str:
    if data is None:
        return "nothing"
    if isinstance(data, Mapping):
        return "a table"
    if isinstance(data, list | tuple):
        return "a list"
    return repr(data)
