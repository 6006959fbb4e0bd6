"""Every chip that ships is read strictly, and says where its figures come from."""

from __future__ import annotations

import configparser
from importlib import resources
from pathlib import Path

import pytest

from anynpu.platform import Platform, read_platform
from anynpu.tensors import DTYPES

FOLDER = Path(str(resources.files("anynpu.data.platforms")))
PLATFORMS = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
ETHOS_U = {
    *(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)),
    *(f"ethos-u65-{macs}" for macs in (256, 512)),
    *(f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)),
}
REAL_ETHOS_U = (
    *("alif-e3", "alif-e3-he", "alif-e4", "alif-e6", "alif-e7", "alif-e7-he", "alif-e8"),
    *("hxwe2", "imx93", "m55m1", "psoc-edge-e84", "ra8p1", "sr110"),
)


def load(name: str) -> Platform:
    return read_platform(PLATFORMS[name])


def test_the_first_chips_are_all_there():
    assert {"cpu", "null", "tflite", "tflm", "hxwe2"} | ETHOS_U <= set(PLATFORMS)


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platform_is_named_as_its_file_and_cites_its_source(name):
    platform = load(name)
    assert platform.name == name == name.lower()
    assert platform.title and platform.vendor and platform.target and platform.source
    assert set(platform.dtypes) <= set(DTYPES)
    assert all(quirk.text and quirk.source and quirk.seen for quirk in platform.quirks)


def test_no_name_or_alias_is_used_twice():
    names = [name for stem in PLATFORMS for name in (stem, *load(stem).aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(ETHOS_U))
def test_an_ethos_u_platform_compiles_for_the_accelerator_of_its_name(name):
    platform = load(name)
    assert platform.target == "vela"
    assert platform.facts["accelerator"] == name
    assert platform.npu.lower() == name


def section(ini: configparser.ConfigParser, name: str) -> dict[str, str]:
    """A section of a Vela configuration file, with what it inherits."""
    own = dict(ini[name])
    return {**section(ini, own["inherit"]), **own} if "inherit" in own else own


@pytest.mark.parametrize("name", REAL_ETHOS_U)
def test_a_real_chip_has_boards_and_says_one_thing_of_its_npu(name):
    platform = load(name)
    assert platform.target == "vela" and platform.boards and platform.memory.sram_kib
    assert platform.facts["accelerator"] == platform.npu.lower() in ETHOS_U
    assert "seen 2026-" in platform.source


@pytest.mark.parametrize("name", sorted(set(REAL_ETHOS_U) - {"imx93"}))
def test_arena_and_clock_are_those_of_the_platform(name):
    platform = load(name)
    ini = configparser.ConfigParser()
    ini.read_string((resources.files("anynpu.data.vela") / platform.facts["config"]).read_text("utf-8"))
    mode = section(ini, f"Memory_Mode.{platform.facts['memory_mode']}")
    assert platform.memory.sram_kib is not None and platform.clock_mhz is not None
    assert int(mode["arena_cache_size"]) == platform.memory.sram_kib * 1024
    system = section(ini, f"System_Config.{platform.facts['system_config']}")
    assert float(system["core_clock"]) == platform.clock_mhz * 1e6
