"""anynpu compare http://A http://B: two servers that others wrote, in turn, with the agreement of their vectors."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import openai_form
import pytest

from anynpu.cli.main import main
from anynpu.measure.web.agreement import agreement, rank_correlations, similarities
from anynpu.records.load import load, published

QUICK = ("--seconds", "0.1", "-n", "10", "-q")


@pytest.fixture(scope="module")
def server():
    with openai_form.running() as found:
        yield found


@pytest.fixture
def compare(capsys, server):
    """Compares two behaviours of the server and returns status, stdout and stderr."""

    def call(a, b, *words):
        routes = [f"{server.url}/{name}/v1/embeddings" if "/" not in name else name for name in (a, b)]
        status = main(["compare", *routes, *QUICK, *map(str, words)])
        return status, *capsys.readouterr()

    return call


def test_a_slower_server_is_worse(compare, server):
    status, out, err = compare("ok", "slower", "-f", "json", "--connections", 2)
    record = json.loads(out)
    assert status == 1, err
    load(record, "the record")
    jsonschema.validate(record, published("compare"))
    web = record["http"]
    assert record["verdict"] == record["latency"]["verdict"] == web["throughput"]["verdict"] == "worse"
    assert record["latency"]["order"] == "ABBAABBAAB" and len(web["a"]["per_s"]) == len(web["b"]["per_s"]) == 5
    assert record["latency"]["ratio"]["low"] > 1 and web["throughput"]["ratio"] < 1
    assert web["throughput"]["low"] <= web["throughput"]["ratio"] <= web["throughput"]["high"]
    assert web["a"]["cores_used"] and min(web["a"]["rss_bytes"]) > 1e6 and web["connections"] == 2
    assert web["agreement"]["cosine"] == [1.0, 1.0, 1.0] and web["agreement"]["overlap"][0] == 1.0


def test_the_text(compare):
    status, out, err = compare("slower", "ok")
    assert status == 0 and "verdict: better" in out and "throughput: B / A = " in out, out + err
    assert "cosine 1.00000" in out and "client-side latency" in out


def test_other_coordinates_of_the_same_points_have_the_same_neighbours(compare):
    _, out, _ = compare("ok", "rotated", "-f", "json")
    alike = json.loads(out)["http"]["agreement"]
    assert (alike["width_a"], alike["width_b"]) == (openai_form.WIDTH, openai_form.WIDTH + 1) and alike[
        "cosine"
    ] is None
    assert alike["overlap"][0] == 1.0 and alike["rank_correlation"][0] > 0.999


def test_a_little_noise_and_another_model(compare):
    _, out, _ = compare("ok", "noisy", "-f", "json")
    alike = json.loads(out)["http"]["agreement"]
    assert 0.99 < alike["cosine"][0] < 1 and alike["cosine"][1] <= alike["cosine"][0] <= alike["cosine"][2]
    status, out, err = compare("ok", "other", "--min-agreement", 0.9)
    assert status == 7 and "under 0.9" in err and "of two different models" in out


@pytest.mark.parametrize(
    ("a", "b", "words", "status", "said"),
    [
        ("ok", "nan", (), 6, "NaN"),
        ("ok", "http://127.0.0.1:9/v1/embeddings", (), 6, "http://127.0.0.1:9"),
        ("moved", "ok", (), 6, "redirects to"),
        ("ok", "ok", ("--launches", 3), 2, "too few for a verdict"),
        ("ok", "ok", ("--min-sqnr", 3), 2, "--min-sqnr has no effect here"),
        ("ok", "out/cpu", (), 2, "one is a server, the other is not"),
        ("ok", "http://x:y/", (), 2, "was expected"),
    ],
)
def test_what_cannot_be_compared(compare, a, b, words, status, said):
    got, _, err = compare(a, b, *words)
    assert got == status and said in err, err


def test_a_width_that_changes_breaks_it_off_before_anything_is_timed(compare):
    status, out, err = compare("ok", "width")
    assert status == 6 and "width" in err and out == ""


def test_flags_of_servers_have_no_use_for_artifacts(capsys):
    assert main(["compare", "a", "b", "--connections", "3"]) == 2
    assert "--connections has no effect here" in capsys.readouterr().err


def test_agreement_against_pearsons_correlation_of_ranks():
    """Spearman's correlation is Pearson's of the ranks; numpy's corrcoef is the judge."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(12, 5)), rng.normal(size=(12, 7))
    near_a, near_b = similarities(a), similarities(b)
    for row, (x, y) in zip(rank_correlations(near_a, near_b), zip(near_a, near_b, strict=True), strict=True):
        ranks = [np.searchsorted(np.sort(values), values) for values in (x, y)]
        assert np.isclose(row, np.corrcoef(*ranks)[0, 1])
    found = agreement(a, b)
    assert found.cosine is None and found.figure == found.rank_correlation[0] and not found.same
    assert agreement(a, 3 * a).same
