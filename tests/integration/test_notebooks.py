# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from top to bottom; those with Docker are in tests/docker."""

from pathlib import Path

import nbformat
import pytest
from jobs import ROOT
from nbclient import NotebookClient

SLOW = ("characters.ipynb", "keras_digits.ipynb", "local_process.ipynb")  # minutes of training
NOTEBOOKS = [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in SLOW))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    if path.name != "local_docker.ipynb"
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_runs(path: Path, tmp_path):
    """Every cell ends without an error."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=400,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()

    assert all("outputs" in cell for cell in notebook.cells if cell.cell_type == "code")
