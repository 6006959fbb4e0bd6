"""One command for five chips on a machine where one vendor's tool is installed: the others say what to get."""

from __future__ import annotations

import json

import pytest
from fake_rknn import write_toolkit

pytest.importorskip("ai_edge_litert")

CHIPS = "cv180x,ryzen-ai-stx,rk3588,ethos-u55-128,mcxn947"
INSTALL = {
    "cv180x": "anynpu tool install cvi",
    "ryzen-ai-stx": "anynpu tool install quark",
    "mcxn947": "EIQ_NEUTRON_PATH",
}


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    root = tmp_path_factory.mktemp("some-tools")
    return root, str(write_toolkit(root / "toolkit"))


def build(cli, some, *more):
    root, toolkit = some
    line = ("build", "-m", "zoo:kws", "-t", CHIPS, "-o", str(root / "out"), "--overwrite", "-q", *more)
    return cli(*line, RKNN_TOOLKIT2_PATH=toolkit)


def test_those_that_can_succeed_and_the_others_say_what_to_install(cli, some):
    done = build(cli, some, "-f", "json")
    chips = {chip["chip"]: chip for chip in json.loads(done.stdout)["chips"]}
    assert list(chips) == CHIPS.split(",")
    assert done.returncode == 4, done.stderr
    for name in ("rk3588", "ethos-u55-128"):
        assert chips[name]["status"] == "ok" and chips[name]["verification"]["sqnr_db"] > 25
        assert (some[0] / "out" / name / "manifest.json").is_file()
    for name, words in INSTALL.items():
        assert chips[name]["status"] == "ToolMissing" and words in chips[name]["error"]["hint"]
        assert not (some[0] / "out" / name / "manifest.json").exists()


def test_the_closing_table_has_a_line_for_each(cli, some):
    done = build(cli, some)
    lines = done.stdout.splitlines()
    for name in CHIPS.split(","):
        assert any(line.split()[:1] == [name] for line in lines), done.stdout
    told = done.stdout + done.stderr
    assert all(words in told for words in INSTALL.values())
