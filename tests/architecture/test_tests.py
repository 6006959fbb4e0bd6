"""The order of the tests: folders by what they need, and what they share in one place."""

from __future__ import annotations

import ast
from pathlib import Path

from source_tree import ROOT, imported

TESTS = ROOT / "tests"
FOLDERS = {
    "apps",
    "architecture",
    "cli",
    "conformance",
    "congruence",
    "device",
    "docs",
    "firmware",
    "kit",
    "robustness",
    "toolchain",
    "truth",
    "unit",
}


def calls(text: str) -> list[str]:
    """Returns the functions that a file calls anywhere."""
    return [ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def files() -> list[Path]:
    return [path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts]


def mirrors(path: Path, text: str = "") -> bool:
    """Whether a file below `unit/` imports something of the folder of the source that it stands for."""
    tree = ast.parse(text or path.read_text("utf-8"))
    names = {name for node in ast.walk(tree) for name in imported(node)}
    folder = path.parent.relative_to(TESTS / "unit").parts
    if folder:
        return any(f"{name}.".startswith(".".join(("anynpu", *folder, ""))) for name in names)
    modules = {f"anynpu.{module.stem}" for module in (ROOT / "src" / "anynpu").glob("*.py")}
    return any(name.startswith(tuple(modules)) for name in names)


def test_no_file_changes_the_path_of_modules():
    called = {path: calls(path.read_text("utf-8")) for path in files()}
    assert [path for path, names in called.items() if any(name.startswith("sys.path.") for name in names)] == []
    assert calls("import sys\nsys.path.insert(0, 'x')\n") == ["sys.path.insert"]


def test_folders_are_those_of_the_page():
    page = (ROOT / "docs" / "contributing.md").read_text("utf-8")
    assert {path.relative_to(TESTS).parts[0] for path in files() if path.parent != TESTS} == FOLDERS
    assert [name for name in sorted(FOLDERS) if f"`{name}/`" not in page] == []


def test_unit_mirrors_the_source():
    """A file of `unit/measure` tests something of `measure`, one of `unit` itself a module at the top."""
    assert [path for path in (TESTS / "unit").rglob("test_*.py") if not mirrors(path)] == []
    assert not mirrors(TESTS / "unit" / "graph" / "test_tests.py", Path(__file__).read_text("utf-8"))
