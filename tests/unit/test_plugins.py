"""Plug-ins: found by name, near name, alias and case; a broken one hurts nobody else."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anynpu import plugins
from anynpu.errors import ConfigError, ToolFailed
from anynpu.pipeline.planner import chain

TOML = 'name = "{name}"\ntitle = "A chip"\nvendor = "V"\ntarget = "{target}"\naliases = ["{alias}"]\n'


def forget() -> None:
    for function in (plugins._everything, plugins._registered, plugins.load, plugins._aliases, plugins._read):
        function.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a good chip, one with a typing error, and a compiler that does not import."""
    package = tmp_path / "acme_npu"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("raise RuntimeError('built for another machine')\n")
    (package / "acme-1.toml").write_text(TOML.format(name="acme-1", target="null", alias="acme"))
    (package / "acme-2.toml").write_text("name = 'acme-2'\ntitel = 'x'\n")
    (package / "acme-3.toml").write_text(TOML.format(name="acme-3", target="acme", alias="a3"))
    info = tmp_path / "acme_npu-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-npu\nVersion: 1.0\n")
    chips = "".join(f"acme-{n} = acme_npu\n" for n in (1, 2, 3))
    (info / "entry_points.txt").write_text(
        f"[anynpu.targets]\nacme = acme_npu.broken:Acme\n[anynpu.platforms]\n{chips}acme-4 = no_such_package\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield package
    forget()
    for name in [n for n in sys.modules if n.startswith("acme_npu")]:
        del sys.modules[name]


def test_names_are_listed_without_importing(third_party: Path) -> None:
    assert {"cpu", "null", "acme"} <= set(plugins.names("targets"))
    assert "acme_npu.broken" not in sys.modules


def test_chips_are_found_in_any_case_and_by_alias(third_party: Path) -> None:
    assert plugins.platform(" CPU ").name == "cpu"
    assert plugins.platform("Acme").name == "acme-1"


def test_every_built_in_alias_leads_to_its_chip() -> None:
    for name in plugins.names("platforms"):
        for alias in plugins.platform(name).aliases:
            assert plugins.platform(alias).name == name


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("targets", "vella", "no such target: vella (did you mean 'vela'?)"),
        ("sessions", "tlfm", "no such device: tlfm (did you mean 'tflm'?)"),
        ("targets", "qqqq", "no such target: qqqq"),
    ],
)
def test_an_unknown_name_says_the_nearest(kind: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.load(kind, name)
    assert caught.value.message == message and "anynpu tool list" in caught.value.hint


def test_an_unknown_chip_says_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no such chip: ethos-u65-257 \(did you mean 'ethos-u65-256'\?\)") as caught:
        plugins.platform("ethos-u65-257")
    assert "anynpu targets" in caught.value.hint


def test_an_unknown_board_says_the_nearest_alias() -> None:
    with pytest.raises(ConfigError, match=r"\(did you mean 'grove-vision-ai-v2'\?\)"):
        plugins.platform("grove-vision-ai-v3")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stm32", "did you mean 'cortex-m0plus', 'cortex-m33', 'cortex-m4', 'cortex-m55' or 'cortex-m7'?"),
        ("esp32", "did you mean 'riscv32' or 'tflm'?"),
        ("grove vision", "did you mean 'hxwe2'?"),
        ("ethos", "did you mean 'ethos-u55-128', 'ethos-u55-256', 'ethos-u55-32', 'ethos-u55-64' or one of "),
    ],
)
def test_an_unknown_chip_says_the_chips_of_that_board_or_part(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.platform(name)
    assert said in caught.value.message and f"anynpu targets {shlex.quote(name)}" in caught.value.hint


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("Ensemble E7", {"alif-e7", "alif-e7-he"}),
        ("Alif E7 App", {"alif-e7", "alif-e7-he"}),
        ("Grove Vision", {"hxwe2"}),
        ("i.MX 93", {"imx93"}),
        ("RENESAS", {"ra8p1"}),
        ("pse84", {"psoc-edge-e84"}),
        ("u65", {"ethos-u65-256", "ethos-u65-512", "imx93"}),
        ("stm32f407vg", {"cortex-m4"}),
        ("STM32H7", {"cortex-m7"}),
        ("stm32", {"cortex-m0plus", "cortex-m33", "cortex-m4", "cortex-m55", "cortex-m7"}),
        ("esp32", {"riscv32", "tflm"}),
        ("nucleo", {"cortex-m4", "cortex-m7"}),
        ("pico 2", {"cortex-m33"}),
        ("qqqq", set()),
        (" - ", set()),
        ("", set()),
    ],
)
def test_chips_are_found_by_a_part_of_what_they_are_called(part: str, names: set[str]) -> None:
    assert {platform.name for platform in plugins.platforms_like(part)} == names


def test_a_broken_chip_hides_no_other_from_a_search(third_party: Path) -> None:
    assert {platform.name for platform in plugins.platforms_like("acme")} == {"acme-1", "acme-3"}


def test_a_broken_chip_is_named_with_its_place(third_party: Path) -> None:
    with pytest.raises(ConfigError, match=r"acme-2\.toml: titel: no such setting \(did you mean 'title'\?\)"):
        plugins.platform("acme-2")
    with pytest.raises(ConfigError, match="no_such_package is not a package with"):
        plugins.platform("acme-4")


def test_a_broken_compiler_stops_its_own_chip_only(third_party: Path) -> None:
    with pytest.raises(ToolFailed, match=r"acme_npu\.broken:Acme does not load: RuntimeError: built for another"):
        chain(plugins.platform("acme-3"))
    assert [t.name for t in chain(plugins.platform("cpu"))] == ["cpu"]
    assert [t.name for t in chain(plugins.platform("ethos-u55-128"))][-1] == "vela"


def test_two_plug_ins_of_one_name_are_refused(third_party: Path) -> None:
    points = third_party.parent / "acme_npu-1.0.dist-info" / "entry_points.txt"
    points.write_text("[anynpu.platforms]\ncpu = acme_npu\n")
    forget()
    with pytest.raises(ConfigError, match="two plug-ins give platforms 'cpu'"):
        plugins.names("platforms")
