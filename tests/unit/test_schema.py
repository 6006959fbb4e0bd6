"""Strict reading: places, near names, types, and the way back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anynpu import schema
from anynpu.errors import ConfigError, IntegrityError
from anynpu.records.faults import faults


@dataclasses.dataclass(frozen=True)
class Inner:
    sram_kib: int | None = None
    speed: float = 1.5
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outer:
    title: str
    mode: Literal["Fast", "Small"] = "Fast"
    flag: bool = False
    level: Literal[1, 2] = 1
    inner: Inner = dataclasses.field(default_factory=Inner)
    table: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pair: tuple[int, float] = (1, 2.0)
    many: list[Inner] = dataclasses.field(default_factory=list)
    anything: Any = None


inners = st.builds(
    Inner, st.none() | st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text()).map(tuple)
)
outers = st.builds(
    Outer,
    st.text(),
    st.sampled_from(("Fast", "Small")),
    st.booleans(),
    st.sampled_from((1, 2)),
    inners,
    st.dictionaries(st.text(), st.integers()),
    st.tuples(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    st.lists(inners),
)


@given(outers, st.booleans())
def test_what_is_written_is_read_back(value: Outer, whole: bool) -> None:
    text = json.dumps(schema.to_dict(value, whole), allow_nan=False)
    assert schema.from_dict(Outer, json.loads(text), "x.json") == value


@given(outers)
def test_the_digest_is_that_of_the_content(value: Outer) -> None:
    again = schema.from_dict(Outer, json.loads(schema.canonical_json(value)), "x.json")
    assert schema.digest(again) == schema.digest(value)
    assert schema.digest(dataclasses.replace(value, title=value.title + "!")) != schema.digest(value)


def test_defaults_are_left_out_unless_the_whole_is_wanted() -> None:
    assert schema.to_dict(Outer("t")) == {"title": "t"}
    assert schema.to_dict(Outer("t"), whole=True)["inner"] == {"sram_kib": None, "speed": 1.5, "names": []}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"titel": "t"}, "c.toml: titel: no such setting (did you mean 'title'?)"),
        ({"title": "t", "inner": {"sram_kb": 1}}, "c.toml: inner.sram_kb: no such setting (did you mean 'sram_kib'?)"),
        ({"title": "t", "zzz": 1}, "c.toml: zzz: no such setting"),
        ({}, "c.toml: title: is missing"),
        ({"title": 3}, "c.toml: title: text was expected, not 3"),
        ({"title": "t", "flag": 1}, "c.toml: flag: true or false was expected, not 1"),
        ({"title": "t", "inner": {"sram_kib": True}}, "c.toml: inner.sram_kib: a whole number was expected, not True"),
        ({"title": "t", "inner": {"sram_kib": 1.0}}, "c.toml: inner.sram_kib: a whole number was expected, not 1.0"),
        ({"title": "t", "inner": {"speed": True}}, "c.toml: inner.speed: a number was expected, not True"),
        ({"title": "t", "inner": {"speed": float("nan")}}, "c.toml: inner.speed: a finite number was expected"),
        ({"title": "t", "inner": {"speed": float("-inf")}}, "c.toml: inner.speed: a finite number was expected"),
        ({"title": "t", "inner": {"speed": 10**400}}, "c.toml: inner.speed: a finite number was expected"),
        ({"title": "t", "inner": 5}, "c.toml: inner: a table was expected, not 5"),
        ({"title": "t", "inner": {"names": "ab"}}, "c.toml: inner.names: a list was expected, not 'ab'"),
        ({"title": "t", "inner": {"names": [1]}}, "c.toml: inner.names[0]: text was expected, not 1"),
        ({"title": "t", "many": [{}, {"sped": 1}]}, "c.toml: many[1].sped: no such setting (did you mean 'speed'?)"),
        ({"title": "t", "table": {"a": "b"}}, "c.toml: table.a: a whole number was expected, not 'b'"),
        ({"title": "t", "pair": [1]}, "c.toml: pair: 2 values were expected, not 1"),
        ({"title": "t", "mode": "smal"}, "c.toml: mode: 'smal' is not one of Fast, Small (did you mean 'small'?)"),
        ({"title": "t", "level": True}, "c.toml: level: True is not one of 1, 2"),
        ([1], "c.toml: a table was expected, not a list"),
        (None, "c.toml: a table was expected, not nothing"),
    ],
)
def test_messages_name_the_place(data: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema.from_dict(Outer, data, "c.toml")
    assert caught.value.message == message


def test_choices_are_read_in_any_case_and_kept_in_ours() -> None:
    assert schema.from_dict(Outer, {"title": "t", "mode": "SMALL"}, "x").mode == "Small"


def test_near_ignores_case_and_gives_the_name_as_it_is_written() -> None:
    assert schema.near("sram_onyl", ["Sram_Only", "Shared"]) == " (did you mean 'Sram_Only'?)"
    assert schema.near("x", ["Sram_Only"]) == ""
    assert schema.near("bit", {"toycc.bits", "bits"}) == " (did you mean 'bits'?)"


def test_near_knows_the_first_words_of_a_misspelt_name() -> None:
    chips = ["ethos-u55-128", "ethos-u55-256", "ethos-u85-512", "ryzen-ai-phx", "cpu"]
    family = " (did you mean 'ethos-u55-128', 'ethos-u55-256' or 'ethos-u85-512'?)"
    assert schema.near("etos", chips) == schema.near("Etos-U", chips) == family
    assert schema.near("ethos-u55-129", chips) == " (did you mean 'ethos-u55-128'?)"
    assert schema.near("rizen", chips) == " (did you mean 'ryzen-ai-phx'?)"
    assert schema.near("quux", chips) == ""


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (bool, "Yes", True),
        (bool, "off", False),
        (int, "12", 12),
        (float, "1e-3", 1e-3),
        (int | None, "none", None),
        (int | None, "7", 7),
        (str, "12", "12"),
        (Literal["a", "b"], "B", "b"),
        (Literal[1, 2], "2", 2),
    ],
)
def test_text_becomes_the_type_that_is_asked_for(kind: Any, text: str, value: object) -> None:
    found = schema.parse_text(kind, text, "-O x")
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("kind", "text"), [(bool, "1"), (int, "1.5"), (int, ""), (float, "x"), (Literal["a"], "b")])
def test_text_of_another_type_is_refused_with_its_place(kind: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^-O x: "):
        schema.parse_text(kind, text, "-O x")


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"a = 1" + b"0" * 5000, b"a = " + b"[" * 100_000])
def test_broken_toml_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="not valid TOML"):
        schema.read_toml(file)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_broken_json_is_an_integrity_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(content)
    with pytest.raises(IntegrityError, match="not valid JSON"):
        schema.read_json(file)


@pytest.mark.parametrize("read", [schema.read_toml, schema.read_json])
def test_files_that_cannot_be_read(tmp_path: Path, read: Any) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(
    st.text(), s), max_leaves=20))  # fmt: skip
def test_any_data_is_a_record_or_a_config_error(data: Any) -> None:
    try:
        schema.from_dict(Outer, data, "x")
    except ConfigError as error:
        assert error.message.startswith("x")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part."""

    value: float | None = None
    way: Literal["up", "down"] = "up"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    """A whole."""

    kind: Literal["whole"]
    version: int = schema.about("of the form", minimum=1)
    parts: tuple[Part, ...] = ()
    named: Mapping[str, Part | None] | None = schema.about("by name", None)
    free: Any = None


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"parts": [{"value": 1}, {"way": "down"}], "more": 3}, True),
        ({"named": {"a": None, "b": {"value": None}}, "free": [1]}, True),
        ({"kind": "half"}, False),
        ({"version": 0}, False),
        ({"version": True}, False),
        ({"parts": [{"way": "left"}]}, False),
        ({"parts": None}, False),
        ({"named": {"a": {"value": "1"}}}, False),
    ],
)
def test_a_json_schema_is_made_of_a_dataclass(change, valid):
    jsonschema = pytest.importorskip("jsonschema")
    made = schema.json_schema(Whole)
    jsonschema.Draft202012Validator.check_schema(made)
    data = {"kind": "whole", "version": 1, **change}
    assert jsonschema.Draft202012Validator(made).is_valid(data) is valid
    assert list(faults(data, made)) == [] if valid else list(faults(data, made)) != []
    assert made["required"] == ["kind", "version"] and made["properties"]["named"]["description"] == "by name"
