"""The page around a report: one file that loads nothing, runs nothing but its own script, and needs no network."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from anynpu.report.html.markup import Child, Markup, el, join

SIGNS = {"good": "✓", "warn": "▲", "bad": "✕", "none": "•"}
"""A sign with every colour: no reader needs the colour to know."""


@dataclass(frozen=True)
class Section:
    """One part of a report; a section without content is left out."""

    name: str
    title: str
    content: Markup


@dataclass(frozen=True)
class Head:
    """What stands at the top: what was done to what, and what came of it."""

    kind: str
    title: str
    verdict: str
    mood: str
    facts: Sequence[Child] = ()


@functools.cache
def _asset(name: str) -> str:
    return resources.files("anynpu.report.html").joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


def policy() -> str:
    """Returns the page's Content-Security-Policy: its own style and script by hash, and nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(_asset('report.css'))}; script-src {_hash(_asset('report.js'))}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def whole_page(head: Head, sections: Iterable[Section], foot: Child) -> str:
    """Returns the whole file."""
    kept = [section for section in sections if section.content]
    top = join(
        (
            Markup('<meta charset="utf-8">'),
            el("meta", http_equiv="Content-Security-Policy", content=policy()),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("meta", name="referrer", content="no-referrer"),
            el("title", f"{head.title} · {head.kind} · anynpu"),
            el("link", rel="icon", href="data:,"),
            Markup(f"<style>{_asset('report.css')}</style>"),
        )
    )
    links = (el("a", section.title, href=f"#{section.name}") for section in kept)
    toggle = el("button", "Theme", type="button", id="theme", title="Light, dark, or as the system says")
    banner = el(
        "p",
        el("span", SIGNS[head.mood], class_="sign", aria_hidden="true"),
        head.verdict,
        class_=f"verdict {head.mood}",
    )
    spans = [part for fact in head.facts for part in (el("span", fact), Markup(" "))]
    facts = el("p", *spans, class_="facts") if spans else None
    brand, nav = el("span", "anynpu", class_="brand"), el("nav", *links, aria_label="Sections")
    parts = (el("section", el("h2", part.title), part.content, id=part.name, class_="part") for part in kept)
    hero = el("section", el("p", head.kind, class_="kind"), el("h1", head.title), banner, facts, class_="hero")
    body = join(
        (
            el("a", "Skip to the report", href="#main", class_="skip"),
            el("header", brand, nav, toggle, class_="top"),
            el("main", hero, *parts, id="main"),
            el("footer", foot),
            el("div", id="tip", role="tooltip", hidden=True),
            Markup(f"<script>{_asset('report.js')}</script>"),
        )
    )
    return f'<!doctype html>\n<html lang="en"><head>{top}</head>\n<body>{body}</body></html>\n'


def pill(mood: str, text: str) -> Markup:
    """Returns a status with its sign."""
    return el("span", el("span", SIGNS[mood], aria_hidden="true"), " ", text, class_=f"pill {mood}")


def figure(name: str, value: Child, note: Child = None, tag: str = "", mood: str = "") -> Markup:
    """Returns one figure of a card: its name, its value, and what it is measured against."""
    label = el("dt", name, el("span", tag, class_="tag") if tag else None)
    return el("div", label, el("dd", value, el("small", note) if note else None), class_=f"figure {mood}".strip())


COMMAND = re.compile(
    r"`([^`]+)`"  # set as code by whoever wrote it
    r"|((?:(?:pip|apt) install|anynpu tool [a-z]+)(?: [^\s,;()]+)+"  # a command with its words
    r"|(?<![\w-])-(?:-[a-z][\w-]*|[A-Z])(?:[ =][\w.:/%-]+=[^\s,;()]+)?)"  # a flag, with NAME=VALUE where it has one
)


def with_commands(sentence: str) -> Markup:
    """Returns a hint with every command and flag in it set as code that a click copies."""
    parts: list[Child] = []
    end = 0
    for match in COMMAND.finditer(sentence):
        command = match[1] or match[2]
        parts += [sentence[end : match.start()], el("code", command, data_copy=command, class_="command")]
        end = match.end()
    return join([*parts, sentence[end:]])


def meter(share: float, mood: str = "") -> Markup:
    """Returns a bar that is full at 1."""
    width = max(0.0, min(1.0, share)) * 100
    bar = el("rect", width=width, height=6, rx=3, class_=f"fill {mood}".strip())
    return el(
        "svg",
        el("rect", width=100, height=6, rx=3, class_="rail"),
        bar,
        viewbox="0 0 100 6",
        preserveAspectRatio="none",
        class_="meter",
        aria_hidden="true",
    )


def notes(lines: Iterable[str], class_: str = "notes") -> Markup:
    """Returns sentences as a list; an empty string for none."""
    items = [el("li", each) for each in lines]
    return el("ul", *items, class_=class_) if items else Markup("")


def copied(value: str) -> Markup:
    """Returns a digest, short, with the whole of it on hover and one click away."""
    return el("code", value[:12], title=value, data_copy=value, class_="digest") if value else Markup("-")
