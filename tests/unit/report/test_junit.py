"""JUnit XML of every kind of record, and the published JSON Schemas."""

from __future__ import annotations

import copy
import json
import random
import xml.etree.ElementTree as ElementTree

import pytest
import report_records as records
from click.testing import CliRunner

from anynpu.cli.report import report
from anynpu.errors import ConfigError
from anynpu.records.faults import faults
from anynpu.records.load import KINDS, load, published
from anynpu.report import junit
from anynpu.schema import to_dict


def suite(record):
    return ElementTree.fromstring(junit.render(load(record, "x")).encode())[0]


def test_one_case_a_chip_with_failure_error_or_skipped():
    chips = [
        records.chip("cpu"),
        records.chip("u55", "fallback", records.deep_graph(30)),
        records.failed("hxwe2", last_lines=["line 1", "line 2"]),
        records.failed("tflm", "AccuracyError", "too far off"),
        records.chip("null", verification=None, not_verified="nothing here runs it"),
    ]
    found = suite(records.build(chips))
    assert [found.get(k) for k in ("name", "tests", "failures", "errors", "skipped")] == [
        "zoo:deep",
        "5",
        "2",
        "1",
        "1",
    ]
    assert [case.get("name") for case in found] == ["cpu", "u55", "hxwe2", "tflm", "null"]
    assert [[child.tag for child in case if child.tag != "system-out"] for case in found] == [
        [],
        ["failure"],
        ["error"],
        ["failure"],
        ["skipped"],
    ]
    assert "required" in found[1][0].get("message")
    assert "Scale of the inputs must be equal." in found[1][0].text
    assert found[2][0].get("type") == "ToolFailed"
    assert "line 2" in found[2][0].text
    assert "SQNR dB: 37.4" in found[0].find("system-out").text


def test_odd_names_are_valid_xml():
    odd = "a<b>&\"'\x00\x1b[31m\ud800]]>\ufffe\U0001f600\n\t"
    record = records.build([records.failed(odd, message=odd, last_lines=[odd]), records.chip(odd)], model=odd)
    found = suite(record)
    assert found[0].get("name") == found[1].get("name")
    assert "\\x00" in found[0].get("name")
    assert "\\x1b[31m" in found[0].get("name")
    assert "\\ud800" in found[0].get("name")
    assert "😀" in found[0].get("name")
    assert "]]>" in found[0][0].text


def test_verdicts_of_the_other_kinds():
    assert suite(records.bench()).get("errors") == "0"
    broken = suite(records.bench(complete=False, error="the device went away"))
    assert "the device went away" in broken[0].find("error").get("message")
    assert suite(records.compare()).get("failures") == "1"
    assert suite(records.compare(1.0)).get("failures") == "0"
    sweep = records.sweep()
    sweep["rows"][0] |= {"status": "ToolFailed", "error": "boo"}
    sweep["rows"][1] |= {"status": "fallback"}
    found = suite(sweep)
    assert (found.get("tests"), found.get("errors"), found.get("failures")) == (str(len(sweep["rows"])), "1", "1")
    assert suite(records.evaluation()).get("errors") == "0"
    assert suite({**records.evaluation(), "score": None}).get("errors") == "1"


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_published_and_our_records_are_valid(kind):
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    printed = json.loads(CliRunner().invoke(report, ["--schema", kind]).output)
    jsonschema.Draft202012Validator.check_schema(printed)
    record = json.loads(json.dumps(records.EVERY[kind]()))
    jsonschema.validate(record, printed)
    loaded = load(record, "x")
    assert load(json.loads(json.dumps(to_dict(loaded))), "x") == loaded
    with pytest.raises(ConfigError, match="no such kind"):
        published("bild")


def small(kind):
    """Returns a record of few samples and nodes."""
    if kind == "build":
        return records.build([records.chip("x", graph=records.deep_graph(4)), records.failed("y")])
    return (
        records.bench(40)
        if kind == "bench"
        else records.compare(count=8)
        if kind == "compare"
        else records.EVERY[kind]()
    )


def damage(value, rng):
    """Returns a copy in which one place holds something of another type, or is gone."""
    value = copy.deepcopy(value)
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.85:
            place = place[key]
            continue
        if rng.random() < 0.3 and isinstance(place, dict):
            del place[key]
        else:
            place[key] = rng.choice([None, 5, 2.5, -1, 1e3, True, "text", [], {}, [1, "x"], {"name": 3}])
        return value


@pytest.mark.parametrize("kind", KINDS)
def test_our_check_agrees_with_jsonschema(kind):
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    validator = jsonschema.Draft202012Validator(published(kind))
    record = small(kind)
    rng, refused = random.Random(7), 0
    for _ in range(300):
        data = json.loads(json.dumps(damage(record, rng)))
        valid = validator.is_valid(data)
        refused += not valid
        assert (not list(faults(data, published(kind)))) == valid
    assert 10 < refused < 300


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_passes_the_check_is_rendered(kind):
    """A damaged record is refused in one sentence or rendered; nothing else may come out."""
    from anynpu.report import html, markdown

    record = small(kind)
    rng, rendered = random.Random(11), 0
    for _ in range(150):
        data = json.loads(json.dumps(damage(damage(record, rng), rng)))
        try:
            loaded = load(data, "x")
        except ConfigError:
            continue
        rendered += 1
        assert html.render(loaded).startswith("<!doctype html>")
        assert suite(data).tag == "testsuite"
        if kind != "build":
            assert markdown.render(loaded)
    assert rendered > 10
