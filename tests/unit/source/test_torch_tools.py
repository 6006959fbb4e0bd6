"""Which tools an import of a torch module names."""

from __future__ import annotations

import importlib.metadata

from anynpu import tool
from anynpu.source.load import ModelSource, tools


def test_a_torch_without_onnxscript_is_enough(tmp_path, monkeypatch):
    """Tracing needs none, and before torch 2.5 there is nothing else."""
    version = importlib.metadata.version

    def without(name: str) -> str:
        if name == "onnxscript":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    (tmp_path / "net.py").write_text("def make():\n    pass\n")
    monkeypatch.setattr(importlib.metadata, "version", without)
    tool.version_of.cache_clear()
    named = tools(ModelSource(f"{tmp_path / 'net.py'}:make"))
    tool.version_of.cache_clear()
    assert "torch" in named and "onnxscript" not in named
