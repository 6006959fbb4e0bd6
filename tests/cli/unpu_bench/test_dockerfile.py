"""What the Dockerfile names exists: files, extras, tools and their licences, packages, build arguments."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from anynpu import plugins
from anynpu.capsules.toolchain import names, read_toolchain

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "Dockerfile").read_text("utf-8")
PAGE = (ROOT / "docs" / "docker.md").read_text("utf-8")
KEYWORDS = {"FROM", "ARG", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Returns every instruction as (keyword, rest), continued lines joined and comments left out."""
    lines = [line for line in TEXT.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments() -> dict[str, str]:
    pairs = (rest.partition("=") for word, rest in instructions() if word == "ARG")
    return {name: value.strip('"') for name, _, value in pairs}


def runs() -> str:
    return "\n".join(rest for word, rest in instructions() if word == "RUN")


def test_only_known_instructions_in_a_sound_order():
    words = [word for word, _ in instructions()]
    assert set(words) <= KEYWORDS and words[0] == "FROM" and words[-1] == "CMD"
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users == ["anynpu"]  # what runs in the container is not root
    assert ("WORKDIR", "/workspace") in instructions()


def test_every_copied_file_exists_and_is_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    copied = [rest for word, rest in instructions() if word == "COPY" and "--from=" not in rest]
    sources = [p for rest in copied for p in rest.split()[:-1] if not p.startswith("--")]
    assert "src" in sources and "pyproject.toml" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in kept), f"{source} is kept out by .dockerignore"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= set(sources)  # hatchling wants them


def test_every_stage_that_is_copied_from_exists():
    stages = {rest.split()[-1] for word, rest in instructions() if word == "FROM" and " AS " in rest}
    assert set(re.findall(r"--from=(\S+)", TEXT)) == stages


def test_the_extras_and_the_torch_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = re.search(r"/tmp/source\[([\w,]+)\]", TEXT)
    assert named and set(named[1].split(",")) <= set(extras) and "build" in named[1]
    torch = re.search(r"torch==[\d.]+", runs())
    assert torch and torch[0] in (ROOT / "requirements.lock").read_text("utf-8").split()


def test_every_tool_exists_may_be_handed_on_and_finds_its_python():
    tools = arguments()["TOOLS"].split()
    assert tools
    for name in tools:
        chain = read_toolchain(name)
        assert chain.wanted, f"{name} is nothing that anynpu installs"
        assert "proprietary" not in chain.licence and "own licence" not in chain.licence, name
        assert chain.python in ("3.10", "3.11"), f"{name} wants Python {chain.python}"
        for program in chain.needs:
            assert re.search(rf"\b{re.escape(program)}(\s|$)", runs()), f"{name} needs {program}"
    assert "python3.10" in runs()
    if "g++" in {program for name in tools for program in read_toolchain(name).needs}:
        assert "python3-dev" in runs().split()  # what is compiled at the first import includes Python.h


def test_the_page_says_of_every_tool_whether_it_is_in_the_image():
    for name in names():
        assert re.search(rf"^\| `{name}` \|", PAGE, re.MULTILINE), f"{name} is not in docs/docker.md"
    for name in arguments():
        assert f"`{name}`" in PAGE, f"build argument {name} is not in docs/docker.md"


def test_every_cross_compiler_is_there():
    packages = {*runs().split(), *arguments()["FIRMWARE"].split()}
    for chip in plugins.names("platforms"):
        facts = plugins.platform(chip).facts
        for package in str(facts.get("package", "")).split():
            assert package in packages or package == "gcc", f"{chip} needs {package}"
        if str(facts.get("machine", "")).startswith("mps"):
            assert "qemu-system-arm" in packages


@pytest.mark.parametrize("name", ["ANYNPU_CACHE_DIR", "AI8X_SYNTHESIS_PATH"])
def test_the_environment_is_one_that_anynpu_reads(name):
    source = "\n".join(p.read_text("utf-8") for p in (ROOT / "src").rglob("*") if p.suffix in (".py", ".toml"))
    assert name in "\n".join(rest for word, rest in instructions() if word == "ENV")
    assert name in source


def test_no_argument_is_unused_and_none_is_used_before_it_is_declared():
    seen: set[str] = set()
    for word, rest in instructions():
        if word == "ARG":
            seen.add(rest.partition("=")[0])
        if word == "ENV":
            seen |= set(re.findall(r"(\w+)=", rest))
        assert set(re.findall(r"\$\{?([A-Z][A-Z0-9_]*)", rest)) <= seen, rest
    used = set(re.findall(r"\$\{?([A-Z][A-Z0-9_]*)", runs()))
    assert set(arguments()) <= used


def test_another_user_may_write_beside_the_capsules_and_not_into_them(tmp_path):
    home, cache = tmp_path / "home", tmp_path / "cache"
    opened = ["logs/capsule-cvi.log", "locks/capsule-cvi.lock", "capsules/licences/cvi.json"]
    shut = ["capsules/cvi-66fcc1edf229/bin/python", "capsules/quark-18822c938a14/capsule.json"]
    files = [home / ".cache/torch_extensions/quark/lock", *(cache / name for name in opened + shut)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o644)
    command = runs().splitlines()[-1].partition("&& find ")[2]
    for name, here in (("/home/anynpu", home), ("/opt/cache", cache), ("-user anynpu", f"-user {os.getuid()}")):
        assert name in command
        command = command.replace(name, str(here))
    subprocess.run(["sh", "-c", f"find {command}"], check=True)
    for file in files:
        wanted = not any(file == cache / name for name in shut)
        assert bool(file.stat().st_mode & 0o002) == wanted, file
        assert bool(file.parent.stat().st_mode & 0o002) == wanted, file.parent
    assert (cache / "capsules").stat().st_mode & 0o002
