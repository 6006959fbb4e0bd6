"""AMD's Ryzen AI software, and what the VitisAI provider is told for each chip."""

from __future__ import annotations

import pytest

from anynpu import plugins
from anynpu.drivers.ryzen_facts import VitisFacts
from anynpu.drivers.ryzen_sdk import provider_options, sdk, xclbin
from anynpu.errors import ConfigError, ToolMissing, Unsupported


def facts(chip):
    return plugins.platform(chip).facts_as(VitisFacts)


@pytest.fixture
def installed(tmp_path):
    """An installation with two releases of the runtime beside each other."""
    for name in ("voe-4.0-win_amd64", "voe-4.10-win_amd64", "voe-notes"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "voe-4.10-win_amd64" / "xclbins" / "phoenix"
    folder.mkdir(parents=True)
    (folder / "4x4.xclbin").write_bytes(b"xclbin2")
    return {"RYZEN_AI_INSTALLATION_PATH": str(tmp_path)}


def test_the_newest_runtime_counts_by_number(installed):
    assert sdk(installed).voe.name == "voe-4.10-win_amd64"


def test_what_is_missing_is_said(tmp_path, installed):
    with pytest.raises(ToolMissing, match="RYZEN_AI_INSTALLATION_PATH is not set"):
        sdk({})
    with pytest.raises(ToolMissing, match="nowhere: no such folder"):
        sdk({"RYZEN_AI_INSTALLATION_PATH": "nowhere"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToolMissing, match="has no voe-"):
        sdk({"RYZEN_AI_INSTALLATION_PATH": str(tmp_path / "empty")})
    (sdk(installed).voe / "xclbins/phoenix/4x4.xclbin").rename(sdk(installed).voe / "xclbins/phoenix/1x4.xclbin")
    with pytest.raises(ToolMissing, match=r"4x4\.xclbin: no such file") as missing:
        xclbin(facts("ryzen-ai-phx"), sdk(installed))
    assert "it has xclbins/phoenix/1x4.xclbin" in missing.value.hint and "1.7.1" in missing.value.hint


def test_phoenix_gets_x1_and_the_xclbin(tmp_path, installed):
    found = provider_options(facts("ryzen-ai-phx"), "xint8", tmp_path, "key", installed)
    assert found["target"] == "X1" and found["xclbin"].endswith("voe-4.10-win_amd64/xclbins/phoenix/4x4.xclbin")
    assert found["xlnx_enable_py3_round"] == "0"
    assert (found["cache_dir"], found["cache_key"]) == (str(tmp_path), "key")
    assert found["enable_cache_file_io_in_mem"] == "0"
    with pytest.raises(ToolMissing, match="is not set"):
        provider_options(facts("ryzen-ai-phx"), "xint8", tmp_path, "key", {})
    with pytest.raises(Unsupported, match="does not compute in bf16, but in xint8"):
        provider_options(facts("ryzen-ai-phx"), "bf16", tmp_path, "key", installed)


@pytest.mark.parametrize("chip", ["ryzen-ai-stx", "ryzen-ai-krk"])
def test_later_chips_need_no_sdk_folder(tmp_path, chip):
    found = provider_options(facts(chip), "a8w8", tmp_path, "key", {})
    assert found["target"] == "X2" and "xclbin" not in found
    assert "target" not in provider_options(facts(chip), "bf16", tmp_path, "key", {})


def test_a_user_may_give_a_configuration_and_a_level(tmp_path):
    (tmp_path / "vai.json").write_text("{}")
    given = {"ANYNPU_VITISAI_CONFIG_FILE": str(tmp_path / "vai.json"), "ANYNPU_VITISAI_OPT_LEVEL": "3"}
    found = provider_options(facts("ryzen-ai-stx"), "bf16", tmp_path, "key", given)
    assert found["config_file"] == str(tmp_path / "vai.json") and found["opt_level"] == "3"
    for wrong in ({"ANYNPU_VITISAI_CONFIG_FILE": "nowhere.json"}, {"ANYNPU_VITISAI_OPT_LEVEL": "high"}):
        with pytest.raises(ConfigError):
            provider_options(facts("ryzen-ai-stx"), "bf16", tmp_path, "key", wrong)
