"""AMD's Ryzen AI software on this machine, and what ONNX Runtime's VitisAI provider is to be told for a chip."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anynpu.drivers.ryzen_facts import VitisFacts
from anynpu.errors import ConfigError, ToolMissing, Unsupported

VARIABLE = "RYZEN_AI_INSTALLATION_PATH"
CONFIG_FILE, OPT_LEVEL = "ANYNPU_VITISAI_CONFIG_FILE", "ANYNPU_VITISAI_OPT_LEVEL"
GET = "install the Ryzen AI software (https://ryzenai.docs.amd.com) and work in its environment"
LAST_WITH_PHOENIX = "1.7.1"
"""Release 1.8 has no xclbin for Phoenix: amd/RyzenAI-SW issue 400."""


@dataclass(frozen=True)
class Sdk:
    """An installation, and its newest voe-* folder, which holds the NPU's binaries."""

    root: Path
    voe: Path


def sdk(environment: Mapping[str, str] = os.environ) -> Sdk:
    """Returns the installation that RYZEN_AI_INSTALLATION_PATH names."""
    named = environment.get(VARIABLE, "")
    if not named:
        raise ToolMissing(f"{VARIABLE} is not set", GET)
    root = Path(named)
    if not root.is_dir():
        raise ToolMissing(f"{VARIABLE}={named}: no such folder", GET)
    folders = [path for path in root.glob("voe-*") if path.is_dir()]
    if not folders:
        raise ToolMissing(f"{root}: has no voe-* folder in it", f"{VARIABLE} names the folder of the Ryzen AI software")
    return Sdk(root, max(folders, key=_version))


def _version(folder: Path) -> tuple[list[int], str]:
    numbers = re.match(r"voe-([\d.]*)", folder.name)
    return [int(part) for part in (numbers[1] if numbers else "").split(".") if part], folder.name


def xclbin(facts: VitisFacts, installed: Sdk) -> Path:
    """Returns the NPU's binary for a chip."""
    path = installed.voe / facts.xclbin
    if path.is_file():
        return path
    others = sorted(p.relative_to(installed.voe).as_posix() for p in installed.voe.glob("xclbins/*/*.xclbin"))
    has = f"it has {', '.join(others)}" if others else "it has none at all"
    old = f"; install Ryzen AI {LAST_WITH_PHOENIX}, the last release with it" if "phoenix" in facts.xclbin else ""
    raise ToolMissing(f"{path}: no such file, and the NPU needs it", f"{has}{old}")


def provider_options(
    facts: VitisFacts, precision: str, cache_dir: Path, cache_key: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the options of the VitisAI provider for a chip and a model of this precision."""
    if precision not in facts.precisions:
        raise Unsupported(
            f"the NPU does not compute in {precision}, but in {', '.join(facts.precisions)}",
            hint=f"build the model again with -O precision={facts.precisions[0]}",
        )
    options = {"cache_dir": str(cache_dir), "cache_key": cache_key, "enable_cache_file_io_in_mem": "0"}
    if precision != "bf16":
        options["target"] = facts.provider_target
        if facts.xclbin_required:
            # Without py3_round=0 the compiler for X1 leaves every operator to the CPU: AMD's quicktest.py sets it too.
            options |= {"xclbin": str(xclbin(facts, sdk(environment))), "xlnx_enable_py3_round": "0"}
    if config := environment.get(CONFIG_FILE):
        if not Path(config).is_file():
            raise ConfigError(f"{CONFIG_FILE}={config}: no such file")
        options["config_file"] = str(Path(config).absolute())
    if level := environment.get(OPT_LEVEL):
        if not level.isdigit():
            raise ConfigError(f"{OPT_LEVEL}={level}: a whole number was expected")
        options["opt_level"] = level
    return options
