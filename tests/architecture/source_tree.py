"""The source files as syntax trees, read once."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anynpu"
CALLED = re.compile(r"anynpu(\.\w+)+:\w+")


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name below anynpu: "targets.vela.rules", "" for the package itself."""
        parts = self.path.relative_to(SOURCE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    def at(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))

    def imports(self) -> Iterator[tuple[str, ast.AST]]:
        """Yields the full name of everything imported anywhere in the file, and of functions that tool.call names."""
        for node in ast.walk(self.tree):
            yield from ((name, node) for name in imported(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CALLED.fullmatch(node.value):
                yield node.value.replace(":", "."), node


def imported(node: ast.AST) -> list[str]:
    """Returns what one statement imports, by full name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


@functools.cache
def modules() -> tuple[Module, ...]:
    """Returns every source file."""
    texts = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    return tuple(Module(path, text, ast.parse(text)) for path, text in texts.items())


def at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yields the statements that run when a module is imported; what only a type checker reads is left out."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            yield from at_import(statement.orelse)
            continue
        yield statement
        for part in ("body", "orelse", "finalbody"):
            yield from at_import(getattr(statement, part, None) or [])
        for handler in getattr(statement, "handlers", ()):
            yield from at_import(handler.body)
