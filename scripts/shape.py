"""Counts what STYLE asks to watch: untyped dictionaries at borders, private functions called once, and long files."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

UNTYPED = re.compile(r"(?:dict|Mapping)\[str, Any\]")
LONG = 400


def shape(root: Path) -> dict[str, object]:
    """Returns the counts of a source tree."""
    texts = {path: path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}
    functions, private, once = 0, 0, 0
    for text in texts.values():
        tree = ast.parse(text)
        names = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private += 1
                    once += names[node.name] == 1
    return {
        "lines": sum(text.count("\n") for text in texts.values()),
        "untyped": sum(len(UNTYPED.findall(text)) for text in texts.values()),
        "look-ups of given": sum(text.count('given["') for text in texts.values()),
        "functions": functions,
        "private, called once": once,
        "share called once": round(once / functions, 4),
        f"files over {LONG} lines": {
            str(path.relative_to(root)): count for path, text in texts.items() if (count := text.count("\n")) > LONG
        },
    }


if __name__ == "__main__":
    for name, value in shape(Path(sys.argv[1] if len(sys.argv) > 1 else "src/anynpu")).items():
        sys.stdout.write(f"{name:22} {value}\n")
