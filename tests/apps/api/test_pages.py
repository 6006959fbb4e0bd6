"""The page and the notebook about the API are executed as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ethosu")
DOCS = Path(__file__).parents[3] / "docs"
pytestmark = pytest.mark.build


def test_the_code_of_the_page_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ethos-u55-128  ok" in done.stdout and "twin of the Ethos-U" in done.stdout


def test_the_notebook_runs_and_shows_its_results(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(DOCS / "python.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without results: they would grow old
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pages = [output.data["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert any("<td>ethos-u55-128</td>" in page and "<details>" in page for page in pages)
    assert any("Ethos-U55" in output.get("text", "") for output in shown)
    assert (tmp_path / "out" / "report.html").is_file()
