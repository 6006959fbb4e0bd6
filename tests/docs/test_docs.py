"""The documentation says what is true: its links lead somewhere, its commands parse, and nothing is left out."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import click
import pytest

from anynpu import errors, plugins
from anynpu.cli.main import VERBS, root

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"])
TEXT = {page.name: page.read_text("utf-8") for page in PAGES}
ALL = "\n".join(TEXT.values())


def commands() -> list[str]:
    """Returns every anynpu command line in a code block, continued lines joined."""
    found = []
    for text in TEXT.values():
        for block in re.findall(r"```(?:\w*)\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.strip().removeprefix("$ ")
                if line.startswith("anynpu ") and not line.startswith("anynpu demo --overwrite "):
                    found.append(re.split(r"\s{2,}(?!-)| #", line)[0])
    return sorted(set(found))


def test_there_are_commands_to_check():
    assert len(commands()) >= 12


@pytest.mark.parametrize("line", commands())
def test_a_command_in_the_docs_has_a_verb_and_flags_that_exist(line):
    words = shlex.split(line)[1:]
    with click.Context(root) as context:
        command = root.get_command(context, words[0])
        assert command is not None, f"no verb {words[0]}"
        for word in words[1:]:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(context, word)
            assert command is not None, f"{line}: no verb {word}"
        known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for word in words[1:]:
        if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word):
            assert word.split("=")[0] in known | {"--help"}, f"{line}: no flag {word}"


def test_a_make_in_the_docs_has_a_target_that_exists():
    files = [ROOT / "Makefile", *(ROOT / "src/anynpu/firmware/project").rglob("[!.]*")]
    text = "\n".join(file.read_text("utf-8", "replace") for file in files if file.is_file() and file.suffix != ".pyc")
    known = {name for line in re.findall(r"^([\w -]+):", text, re.MULTILINE) for name in line.split()}
    known |= {f"test-{name}" for name in re.findall(r"^VENDORS := (.*)", text, re.MULTILINE)[0].split()}
    named = re.findall(r"(?:`|^|\S=\S+ )make(?: -s)?(?: -C \w+)?(?: \w+=\S+)* ([a-z][a-z0-9-]*)\b", ALL, re.MULTILINE)
    assert {"test-driver", "demo", "check", "test-cvi"} <= set(named)
    assert set(named) - {"test-"} <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", TEXT[page.name]):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme():
    reached = set(re.findall(r"([\w-]+\.md)\)", TEXT["README.md"] + TEXT["index.md"]))
    assert "index.md" in reached and {p.name for p in PAGES} - {"README.md"} <= reached


def test_every_verb_chip_and_exit_status_is_documented():
    for verb in VERBS:
        assert f"anynpu {verb}" in ALL or f"`{verb}`" in ALL, verb
    for chip in plugins.names("platforms"):
        assert f"`{chip}`" in ALL, f"chip {chip} is in no page"
    statuses = {
        c.exit_status for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.AnyNpuError)
    }
    section = TEXT["build.md"].partition("## Exit status")[2]
    assert all(re.search(rf"\b{status}\b", section) for status in statuses | {0, 130})


def test_every_option_of_every_compiler_is_documented_and_has_a_help_text():
    for name in plugins.names("targets"):
        for field in dataclasses.fields(plugins.load("targets", name).Options):
            assert field.metadata.get("help"), f"{name}.{field.name} has no help"
            assert re.search(rf"\b{field.name}\b", ALL), f"option {name}.{field.name} is in no page"
