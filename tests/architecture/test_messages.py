"""What errors say: a sentence in lower case without a full stop, as docs/contributing.md asks."""

from __future__ import annotations

import ast
import re

from source_tree import modules

from anynpu import errors

ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
NAMES = {"Dask", "Pillow", "Vela", "Rockchip", "Quark", "Linux"}
"""Words that are written with a capital letter wherever they stand."""


def _ends(node: ast.expr) -> tuple[str, str]:
    """Returns the words that a string begins and ends with, as far as they stand in the source."""
    if isinstance(node, ast.JoinedStr) and node.values:
        first, last = node.values[0], node.values[-1]
        return _ends(first)[0], _ends(last)[1]
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text, text


def faults(tree: ast.AST) -> list[tuple[int, str]]:
    """Returns the sentences of errors that begin with a capital letter or end with a full stop."""
    bad = []
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if getattr(call.func, "id", getattr(call.func, "attr", "")) not in ERRORS:
            continue
        for sentence in [*call.args, *(k.value for k in call.keywords if k.arg in ("hint", "message"))]:
            begin, end = _ends(sentence)
            word = re.match(r"([A-Z][a-z]+)[ ,:]", begin)
            if (word and word[1] not in NAMES) or re.search(r"[a-z]\.$", end.removesuffix("...")):
                bad.append((call.lineno, begin or end))
    return bad


def test_it_sees_its_own_violations():
    tree = ast.parse('ConfigError("No such file", f"give {name} again.")\nConfigError("Vela says no", hint="Give it")')
    assert faults(tree) == [(1, "No such file"), (1, "give "), (2, "Give it")]


def test_errors_speak_in_lower_case_without_a_full_stop():
    assert [f"{m.at(ast.Constant(0, lineno=line))} {words}" for m in modules() for line, words in faults(m.tree)] == []
