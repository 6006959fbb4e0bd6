"""A module imports only from its own group and from earlier ones, at the top, in functions and for types alike."""

from __future__ import annotations

import ast
import re

import pytest
from source_tree import SOURCE, Module, at_import, imported, modules

ORDER = (
    ("", "errors"),
    ("tensors", "schema", "seals", "files", "elf", "foreign", "memory"),
    ("artifact", "arrays", "child", "tool", "nursery", "platform"),
    ("records",),
    ("store", "plugins", "tasks", "capsules"),
    ("runtime", "deploy", "vectors", "drivers"),
    ("measure", "report", "apps"),
    ("source", "graph"),
    ("quantize",),
    ("training",),
    ("lowering",),
    ("targets", "firmware"),
    ("pipeline",),
    ("api",),
    ("testing",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}
HEAVY = {
    *("torch", "torchao", "torchvision", "onnxruntime", "onnxscript", "onnxsim", "litert_torch", "ai_edge_litert"),
    *("ai_edge_quantizer", "ai_edge_torch", "tflite_micro", "ethosu", "jax", "tensorflow", "PIL", "rich"),
}
TORCH_FILES = re.compile(r"source\.(zoo\.(train|blocks|\w+\.net)|bert\.net|standin\.ai8x|onnx_torch\.\w+)")
"""Nets are torch modules, and training is a program of its own: only functions import these files."""


def top_of(full_name: str) -> str:
    """Returns the first part below anynpu of an imported name; a plain name of the package itself is ""."""
    parts = full_name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK | {"data": 0} else ""


def wrong_imports(module: Module) -> list[str]:
    wrong = []
    for name, node in module.imports():
        if name.partition(".")[0] == "anynpu" and module.top != "data":
            target = top_of(name)
            if target == "data":
                wrong.append(f"{module.at(node)}: {name}: data holds no code")
            elif RANK[target] > RANK[module.top] and (module.name, target) != ("", "api"):
                wrong.append(f"{module.at(node)}: {module.top} stands below {target} ({name})")
    return wrong


def test_the_package_itself_imports_nothing_of_ours():
    (root,) = (m for m in modules() if m.name == "")
    names = [name for node in at_import(root.tree.body) for name in imported(node)]
    assert names == ["importlib", "os", "typing.TYPE_CHECKING", "typing.Any"]


def test_every_module_has_a_place_in_the_order():
    assert sorted({m.top for m in modules()} - set(RANK) - {"data"}) == []


@pytest.mark.parametrize("top", sorted({m.top for m in modules()} - {"data"}))
def test_imports_follow_the_order(top):
    assert [line for m in modules() if m.top == top for line in wrong_imports(m)] == []


def test_an_import_against_the_order_is_seen():
    text = "def f():\n    from anynpu.pipeline.build import build\n    tool.call('anynpu.cli.run:run')\n"
    assert len(wrong_imports(Module(SOURCE / "runtime" / "x.py", text, ast.parse(text)))) == 2
    assert wrong_imports(Module(SOURCE / "cli" / "x.py", text, ast.parse(text))) == []


def test_data_holds_no_code():
    code = [m.name for m in modules() if m.top == "data" and not all(isinstance(s, ast.Expr) for s in m.tree.body)]
    assert code == []


def test_errors_import_nothing_of_ours():
    (errors,) = (m for m in modules() if m.name == "errors")
    assert [name for name, _ in errors.imports() if name.startswith("anynpu")] == []


def heavy_at_import(module: Module) -> list[str]:
    allowed = {"torch"} if TORCH_FILES.fullmatch(module.name) else set()
    return [
        f"{module.at(node)}: {name}"
        for node in at_import(module.tree.body)
        for name in imported(node)
        if name.partition(".")[0] in HEAVY - allowed
    ]


def test_heavy_packages_are_imported_inside_the_function_that_needs_them():
    assert [line for m in modules() for line in heavy_at_import(m)] == []


def test_a_heavy_import_at_the_top_is_seen():
    text = "try:\n    import torch\nexcept ImportError:\n    pass\nif TYPE_CHECKING:\n    import onnxruntime\n"
    assert len(heavy_at_import(Module(SOURCE / "graph" / "x.py", text, ast.parse(text)))) == 1


def test_only_functions_import_the_torch_files_of_the_zoo():
    found = [
        f"{m.at(node)}: {name}"
        for m in modules()
        if not TORCH_FILES.fullmatch(m.name)
        for node in at_import(m.tree.body)
        for name in imported(node)
        if TORCH_FILES.match(name.removeprefix("anynpu."))
    ]
    assert found == []


def test_onnx_is_imported_at_the_top_only_where_graphs_are_the_subject():
    found = [
        m.at(node)
        for m in modules()
        if m.top not in ("source", "graph", "quantize", "training", "lowering", "targets")
        for node in at_import(m.tree.body)
        for name in imported(node)
        if name.partition(".")[0] == "onnx"
    ]
    assert found == []
