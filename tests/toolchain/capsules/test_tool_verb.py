"""`anynpu tool` as users call it: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anynpu import schema
from anynpu.capsules import toolchain
from anynpu.capsules.capsule import RECEIPT, Receipt, place
from anynpu.testing.capsules import write_environment


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A cache folder with nothing in it, and no tool of the user's own."""
    for name in toolchain.names():
        monkeypatch.delenv(toolchain.read_toolchain(name).variable, raising=False)
    return ("--cache-dir", str(tmp_path / "cache"))


def test_list_names_every_toolchain_and_how_to_get_it(cli, away):
    rows = json.loads(cli("tool", "list", "-f", "json", *away).stdout)["tools"]
    found = {row["name"]: row for row in rows if row["kind"] == "toolchain"}
    assert set(found) == {"ai8x", "cixbuild", "cvi", "eiq", "qnn", "quark", "rknn"}
    assert found["cvi"]["state"] == "missing" and "anynpu tool install cvi" in found["cvi"]["detail"]
    assert "EIQ_NEUTRON_PATH" in found["eiq"]["detail"]
    assert {"compiler", "runtime"} < {row["kind"] for row in rows}


def test_show_says_what_would_be_installed(cli, away):
    shown = json.loads(cli("tool", "show", "cvi", "-f", "json", *away).stdout)
    assert "tpu_mlir[onnx]==1.30.2" in shown["packages"] and shown["python"] == "3.10" and shown["accepted"] == "no"
    assert "TPU_MLIR_PATH" in cli("tool", "show", "cvi", *away).stdout


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("install", "qnn"), 2, "licence has not been accepted"),
        (("install", "eiq"), 4, "register with NXP"),
        (("verify", "cvi"), 4, "anynpu tool install cvi"),
        (("install", "cvii"), 2, "did you mean 'cvi'"),
        (("show", "none.toml"), 2, "no such file"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_a_status(cli, away, words, status, told):
    done = cli("tool", *words, *away)
    assert done.returncode == status and told in done.stderr and "Traceback" not in done.stderr


def test_compilers_and_runtimes_find_the_tool_of_the_commands_cache_folder(cli, away):
    """Their own code knows nothing of --cache-dir."""
    chain = toolchain.read_toolchain("qnn")
    root = write_environment(place(chain, Path(away[1])), {}, {chain.package: "2.7.0"})
    receipt = Receipt("qnn", chain.recipe, "3.11", "2026-01-01", 1.0, 1, {}, "")
    (root / RECEIPT).write_text(schema.canonical_json(receipt))
    for words, state in ((away, "ready"), ((), "missing")):
        rows = json.loads(cli("tool", "list", "-f", "json", *words).stdout)["tools"]
        assert {row["kind"]: row["state"] for row in rows if row["name"] == "qnn"} == dict.fromkeys(
            ("toolchain", "compiler", "runtime"), state
        )


def test_a_whole_life(wheels, facts, cli, away):
    name = facts()
    made = cli("tool", "install", name, "--accept-licence", "-f", "json", *away)
    assert json.loads(made.stdout)["version"] == "1.0", made.stderr
    assert "about 20 MB" in made.stderr and "licence: yours" in made.stderr and "fake: trying" in made.stderr
    assert "sound" in cli("tool", "verify", name, *away).stdout
    root = json.loads(made.stdout)["root"]
    with (Path(root) / "bin" / "fake-tool").open("a") as file:
        file.write("# more\n")
    broken = cli("tool", "verify", name, *away)
    assert broken.returncode == 8 and "bin/fake-tool: changed" in broken.stdout
    assert json.loads(cli("tool", "remove", name, "-f", "json", *away).stdout)["removed"] == 1
    assert cli("tool", "verify", name, *away).returncode == 4
