"""anynpu targets: every chip, one of them, or those that part of a name fits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from anynpu.cli.inspect import targets
from anynpu.errors import ConfigError


def shown(*words: str) -> str:
    result = CliRunner().invoke(targets, list(words), catch_exceptions=False, standalone_mode=False)
    assert result.return_value == 0
    return result.stdout


@pytest.mark.parametrize("name", ["ra8p1", "EK-RA8P1", "r7ka8p", "renesas"])
def test_a_chip_is_shown_by_name_alias_or_a_part_that_fits_no_other(name):
    text = shown(name)
    assert text.startswith("chip           ra8p1\n")
    for line in ("also called    ek-ra8p1, r7ka8p1", "boards         EK-RA8P1", "NPU clock      500 MHz"):
        assert line in text
    assert "memory         SRAM 1664 KiB, flash 1024 KiB" in text and "vela.optimise" in text
    assert json.loads(shown(name, "-f", "json"))["name"] == "ra8p1"


def test_a_part_of_several_names_lists_those_with_boards_and_aliases():
    header, *lines = shown("alif").splitlines()
    assert header.split() == ["chip", "what", "NPU", "boards", "parts", "also", "called"]
    chips = [line.split()[0] for line in lines]
    assert chips == ["alif-e3", "alif-e3-he", "alif-e4", "alif-e6", "alif-e7", "alif-e7-he", "alif-e8"]
    assert "Alif E8 Development Kit" in lines[2] and "ensemble-e4" in lines[2]
    record = json.loads(shown("alif", "-f", "json"))
    assert record["kind"] == "targets" and [chip["chip"] for chip in record["chips"]] == chips


def test_an_unknown_name_is_an_error_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no such chip: ra8p2 \(did you mean 'ra8p1'\?\)"):
        shown("ra8p2")


@pytest.mark.parametrize(("part", "chip"), [("STM32N6", "cortex-m55"), ("tflite-micro", "tflm")])
def test_what_runs_on_the_cpu_only_on_a_board_is_said(part, chip):
    text = shown(part)
    assert text.startswith(f"chip           {chip}\n") and "on the CPU only" in text
