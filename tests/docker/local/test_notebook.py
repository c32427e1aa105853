# SPDX-License-Identifier: Apache-2.0
"""The notebook of local mode with Docker runs from top to bottom."""

import shutil

import nbformat
import pytest
from jobs import ROOT
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(400, func_only=True)


def test_notebook_runs(image):
    """Its second job goes on from the first one, and its third one fails with a reason."""
    shutil.rmtree(ROOT / "build/notebook-docker", ignore_errors=True)
    path = ROOT / "notebooks/local_docker.ipynb"
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    shown = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )

    assert "resuming after step 66" in shown
    assert "invalid int value: 'many'" in shown
