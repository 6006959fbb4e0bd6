"""A value is named by what it is, not by how it came: nobody can search for `found` or `given`."""

from __future__ import annotations

import ast

from source_tree import Module, modules

HOW_IT_CAME = {"found", "given", "made", "told"}


def variables(module: Module) -> list[str]:
    """Returns the places of variables and parameters with such a name; a field of a record keeps its published one."""
    fields = {
        id(line.target)
        for owner in ast.walk(module.tree)
        if isinstance(owner, ast.ClassDef)
        for line in owner.body
        if isinstance(line, ast.AnnAssign)
    }
    return [
        module.at(node)
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.arg) and node.arg in HOW_IT_CAME)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in HOW_IT_CAME)
        if id(node) not in fields
    ]


def test_values_are_named_by_what_they_are():
    assert [place for module in modules() for place in variables(module)] == []
