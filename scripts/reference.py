"""Writes docs/reference/: verbs, chips, options and records, from the dataclasses and files that define them.

python scripts/reference.py          writes the pages anew
python scripts/reference.py --check  exits with 1 if a page is out of date
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from anynpu import plugins
from anynpu.cli.main import VERBS, root
from anynpu.cli.verb import Common, parameters
from anynpu.pipeline.planner import chain
from anynpu.platform import Platform
from anynpu.records.load import FORMS, published

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
COMMON = {each.name for each in parameters(Common)}


def cell(text: object) -> str:
    """Returns a text as it stands in a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def rows(head: str, *lines: str) -> list[str]:
    """Returns a table, or nothing if it has no rows."""
    return [head, "|" + "---|" * (head.count("|") - 1), *lines, ""] if lines else []


def flag_row(option: click.Option) -> str:
    """Returns the row of a flag: its names, what it takes, its default and its help."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = option.type
    if option.is_flag:
        takes = ""
    elif isinstance(kind, click.Choice):
        takes = ", ".join(f"`{choice}`" for choice in kind.choices)
    else:
        takes = f"`{option.metavar or kind.name.upper()}`"
        if isinstance(kind, (click.IntRange, click.FloatRange)):
            limits = [f"from {kind.min:g}"] if kind.min is not None else []
            limits += [f"to {kind.max:g}"] if kind.max is not None else []
            takes = " ".join([takes, *limits])
    shown = option.default if isinstance(option.default, (str, int, float, Path)) and not option.is_flag else ""
    default = "required" if option.required else f"`{shown}`" if shown != "" else ""
    return f"| {names} | {cell(takes)} | {cell(default)} | {cell(option.help)} |"


def leaves(command: click.Command, name: str, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yields a verb and, of a group of verbs, each of them with its full name."""
    yield name, command
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from leaves(inner, f"{name} {each}", context)


def verbs() -> list[str]:
    """Returns the page of the verbs."""
    common = [flag_row(each) for each in parameters(Common) if isinstance(each, click.Option)]
    lines = ["# Verbs and their flags", "", "Every verb takes these:", ""]
    lines += rows("| flag | takes | default | meaning |", *common)
    lines += [
        "Settings come from the command line, then the environment, then the file of `--config`, then the default."
    ]
    lines += ["In a configuration file a setting has the name of its flag, with `_` for `-`.", ""]
    with click.Context(root) as context:
        for verb in root.list_commands(context):
            command = root.get_command(context, verb)
            assert command is not None
            for name, each in leaves(command, verb, context):
                lines += section(name, each)
    return lines


def section(name: str, command: click.Command) -> list[str]:
    """Returns what the page says of one verb."""
    told = re.split(r"\n\s*\n|\x08", inspect.cleandoc(command.help or ""))[0]
    pieces = [each.make_metavar(click.Context(command)) for each in command.params if isinstance(each, click.Argument)]
    group = ["VERB ..."] if isinstance(command, click.Group) else []
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in COMMON]
    shown = [flag_row(each) for each in options if not each.hidden]
    flags = ["[FLAGS]"] if shown else []
    usage = " ".join(["anynpu", name, *flags, *pieces, *group])
    text = VERBS[name][1] if name in VERBS and not told else cell(told)
    return [f"## {name}", "", text, "", f"`{usage}`", "", *rows("| flag | takes | default | meaning |", *shown)]


def named(kind: Any) -> str:
    """Returns a type as a table says it."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    parts = [each for each in get_args(kind) if each is not type(None)]
    if type(None) in get_args(kind):
        return ", ".join(named(each) for each in parts)
    if get_origin(kind) is tuple:
        return "a list with commas"
    words = {bool: "`true`, `false`", int: "a whole number", float: "a number", str: "text", Path: "a file"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def options() -> list[str]:
    """Returns the page of the compilers' options."""
    chips: dict[str, list[str]] = {}
    for name in plugins.names("platforms"):
        for target in chain(plugins.platform(name)):
            chips.setdefault(target.name, []).append(name)
    lines = ["# Options of the compilers (`-O`)", ""]
    lines += ["`-O name=value` sets an option for every chip of a build whose chain has a compiler with it, `-O"]
    lines += ["compiler.name=value` for one compiler. `anynpu build --plan` shows the chain of a chip.", ""]
    for name in plugins.names("targets"):
        form = plugins.load("targets", name).Options
        hints = get_type_hints(form)
        table = [
            f"| `{each.name}` | {cell(named(hints[each.name]))} | {default_of(each)} | {cell(each.metadata['help'])} |"
            for each in dataclasses.fields(form)
        ]
        serves = ", ".join(f"`{chip}`" for chip in chips.get(name, ()))
        if table and serves:
            lines += [f"## {name}", "", f"For {serves}.", "", *rows("| option | takes | default | meaning |", *table)]
    return lines


def default_of(option: dataclasses.Field[Any]) -> str:
    """Returns the default of an option as its table says it."""
    value = option.default
    if value is None or value in ("", ()) or value is dataclasses.MISSING:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def chips() -> list[str]:
    """Returns the page of the chips."""
    lines = ["# Chips (`-t`)", "", "`anynpu targets NAME` shows one with its facts, quirks and sources.", ""]
    table = []
    for name in plugins.names("platforms"):
        platform: Platform = plugins.platform(name)
        way = " → ".join(target.name for target in chain(platform))
        types = ", ".join(platform.dtypes)
        other = ", ".join(f"`{each}`" for each in platform.aliases)
        table.append(f"| `{name}` | {cell(platform.title)} | {other} | {types} | {way} |")
    return [*lines, *rows("| chip | what it is | also called | types | compilers |", *table)]


def meaning(hint: Any) -> str:
    """Returns what the class of a field says of itself, in lower case, or nothing."""
    kinds = [hint, *get_args(hint), *(inner for each in get_args(hint) for inner in get_args(each))]
    texts = [inspect.getdoc(each) or "" for each in kinds if dataclasses.is_dataclass(each)]
    first = texts[0].partition(".\n")[0].removesuffix(".") if texts else ""
    return first[:1].lower() + first[1:]


def records() -> list[str]:
    """Returns the page of the records."""
    lines = [
        "# Records",
        "",
        "What `-f json` prints and `-o FILE.json` writes. `anynpu report --schema KIND` prints the",
    ]
    lines += ["whole JSON Schema, with what lies inside of a field.", ""]
    for kind in FORMS:
        schema: Any = published(kind)
        needed, hints = set(schema.get("required", ())), get_type_hints(FORMS[kind])
        table = []
        for name, each in schema["properties"].items():
            kinds = each.get("type", "")
            text = f"always `{each['const']}`" if "const" in each else each.get("description", "")
            text = text or meaning(hints.get(name))
            holds = " or ".join(kinds) if isinstance(kinds, list) else kinds
            table.append(f"| `{name}` | {holds} | {'yes' if name in needed else ''} | {cell(text)} |")
        head = "| field | holds | always there | meaning |"
        lines += [f"## {kind}", "", f"{schema.get('title', '')}.", "", *rows(head, *table)]
    return lines


PAGES = {"verbs.md": verbs, "options.md": options, "chips.md": chips, "records.md": records}


def pages() -> dict[str, str]:
    """Returns the text of every page by its file."""
    return {name: "\n".join(make()).rstrip() + "\n" for name, make in PAGES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")
