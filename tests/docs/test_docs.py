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
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"])
TEXT = {str(page.relative_to(DOCS if DOCS in page.parents else ROOT)): page.read_text("utf-8") for page in PAGES}
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


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as they are made on the web."""
    lines = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")):
        if "://" not in target:
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in headings(other), f"{page.name}: no heading {anchor} in {other.name}"


def test_every_page_is_reached_from_the_readme():
    reached = {
        path.removeprefix("docs/") for path in re.findall(r"([\w/-]+\.md)\)", TEXT["README.md"] + TEXT["index.md"])
    }
    assert "index.md" in reached and {*TEXT} - {"README.md"} <= reached


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
