# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does."""

import ast
import re
import runpy
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from sagemaker_dist.contract import DataParallel, render
from sagemaker_dist.planning.strategies import SUPPORT

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[!.]*/README.md")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(path):
    """Every relative link names a file that exists."""
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())

    assert [] == [link for link in links if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_documents_can_be_read(path):
    """Every block of Python is Python."""
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", path.read_text(), re.DOTALL | re.MULTILINE)

    for _, block in blocks:
        ast.parse(textwrap.dedent(block))


def test_distributions_are_those_of_the_code():
    """`make docs` was run after the last change of the table of strategies."""
    page = ROOT / "docs/distributions.md"
    written = runpy.run_path(str(page.with_suffix(".py")))["written"]

    assert written(page.read_text()) == page.read_text()
    assert all(f"`{key}`" in page.read_text() for key in SUPPORT)


def test_wire_document_has_every_key():
    """docs/wire.md lists each option, and its example is what we write."""
    text = (ROOT / "docs/wire.md").read_text()

    assert [] == [f.name for f in fields(DataParallel) if f"`dataparallel.{f.name}`" not in text]
    assert render(DataParallel()) in text


def test_readme_shows_the_demo_as_it_is():
    """What the README shows of the job is what `make demo` runs, paths aside."""
    demo = (ROOT / "notebooks/digits/demo.py").read_text()
    shown = (ROOT / "README.md").read_text()
    lines = [
        line
        for line in demo[demo.index("estimator = ") : demo.index("estimator.fit")].splitlines()
        if "source_dir" not in line and "output_path" not in line
    ]

    assert [] == [line for line in lines if line not in shown]


def test_options_say_what_they_mean():
    """Every option of DataParallel is described, with its default."""
    text = DataParallel.__doc__

    assert [] == [field.name for field in fields(DataParallel) if f"{field.name}: " not in text]
