"""A small scanner of C source: places by name, with comments, strings and braces understood."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKENS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
BODY = re.compile(r"(?:\s|#[^\n]*\n)*\{")
"""What follows a definition's arguments: its body, or the #endif of two declarations that share it, then the body."""
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\r?\n)*[^\n]*\n", re.MULTILINE)
BRACKETS = {"(": ")", "{": "}"}
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b([^\n]*)", re.MULTILINE)


def code(text: str) -> str:
    """Returns the text with comments, strings and characters blanked; every offset and line stays where it is."""
    return TOKENS.sub(lambda match: re.sub(r"[^\r\n]", " ", match.group()), text)


def line_of(text: str, offset: int) -> int:
    """Returns the number of the line, from zero, that holds an offset."""
    return text.count("\n", 0, offset)


def closing(text: str, start: int) -> int:
    """Returns the offset of the bracket that closes the one at `start` of blanked text, or -1."""
    opened, depth = text[start], 0
    for match in re.finditer(f"[{re.escape(opened + BRACKETS[opened])}]", text[start:]):
        depth += 1 if match.group() == opened else -1
        if depth == 0:
            return start + match.start()
    return -1


@dataclass(frozen=True)
class Function:
    """Where a function is defined: offsets of its declaration, its braces, and the text before its name."""

    start: int
    open: int
    close: int
    kind: str
    arguments: str


def function(text: str, name: str) -> Function | None:
    """Returns the definition of a function, or None where the text only declares or calls it."""
    blank = code(text)
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", blank):
        end = closing(blank, match.end() - 1)
        opened = BODY.match(blank, end + 1) if end > 0 else None
        close = closing(blank, opened.end() - 1) if opened else -1
        if opened and close > 0:
            # The declaration begins after `;`, `}` or a directive.
            at = match.start()
            start = max(blank.rfind(";", 0, at), blank.rfind("}", 0, at)) + 1
            after = [m.end() for m in DIRECTIVE.finditer(blank[start:at])]
            start += after[-1] if after else 0
            start += len(blank[start:at]) - len(blank[start:at].lstrip())
            kind = " ".join(blank[start:at].split())
            return Function(start, opened.end() - 1, close, kind, text[match.end() : end])
    return None


@dataclass(frozen=True)
class Call:
    """Where a macro or function is called as a statement of its own: offsets, and its argument as written."""

    start: int
    end: int
    argument: str


def calls(text: str, name: str) -> Iterator[Call]:
    """Yields every `NAME(argument);` outside of comments, strings and definitions."""
    blank = code(text)
    for match in re.finditer(rf"\b{re.escape(name)}\s*\(", blank):
        end = closing(blank, match.end() - 1)
        stop = re.compile(r"\s*;").match(blank, end + 1) if end > 0 else None
        if stop:
            yield Call(match.start(), stop.end(), text[match.end() : end].strip())


def conditions(text: str, offset: int) -> list[str]:
    """Returns the preprocessor conditions that an offset stands under, outermost first."""
    stack: list[str] = []
    for match in DIRECTIVE.finditer(code(text)):
        if match.start() >= offset:
            break
        word, rest = match.group(1), match.group(2).strip()
        if word in ("if", "ifdef", "ifndef"):
            stack.append(f"{word} {rest}")
        elif stack and word == "endif":
            stack.pop()
        elif stack:
            stack[-1] = f"{stack[-1]}; {word} {rest}".strip()
    return stack


def is_versioned(text: str, offset: int, newest: int = 6) -> bool:
    """Tells whether an offset stands under a condition on the kernel's version, of `newest` or a later major one."""
    numbers = (re.findall(r"KERNEL_VERSION\s*\(\s*(\d+)", condition) for condition in conditions(text, offset))
    return any(int(major) >= newest for majors in numbers for major in majors)
