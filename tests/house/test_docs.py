# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does."""

import ast
import re
import runpy
import textwrap
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from sagemaker_dist.contract import DataParallel, render
from sagemaker_dist.planning.distribution_support import SUPPORT

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "docs/reading"  # texts of one commit, graded: they name its files
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")]
    if SAMPLES not in path.parents
)
PACKAGES = {"sagemaker_dist": ROOT, "smdist": ROOT / "container"}
LINK = r"\]\((?!https?://)([^)#]*)(#([^)]+))?\)"
MODULE = r"`((?:smdist|sagemaker_dist)(?:\.\w+)+)"
PYTHON = r"^( *)```python\n(.*?)^ *```"
IN_CONTAINER = r"(?:smdist|src|bindings|include)"
TOP = r"(?:sagemaker_dist|container|tests|docs|benchmarks|notebooks|\.ci)"
API = {
    "sagemaker_dist": "sagemaker_dist/__init__.py",
    "dataparallel_torch": "container/smdist/dataparallel/torch/__init__.py",
    "dataparallel_tensorflow": "container/smdist/dataparallel/tensorflow/__init__.py",
    "checkpoint": "container/smdist/checkpoint/__init__.py",
    "modelparallel_torch": "container/smdist/modelparallel/torch/__init__.py",
    "modelparallel_tensorflow": "container/smdist/modelparallel/tensorflow/__init__.py",
}
README_LINES = 130
README_ORDER = [
    "What works",
    "Install",
    "A job on SageMaker",
    "The script's diff",
    "The same job on this machine",
    "A model over several devices",
    "Links",
]


def prose(path):
    """The text of a document without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_links_within_the_repository_lead_somewhere():
    """Every relative link names a file that exists, and with a # a heading of that page."""
    assert [] == [
        (str(path.relative_to(ROOT)), link, anchor)
        for path in DOCUMENTS
        for link, _, anchor in re.findall(LINK, path.read_text())
        if not is_there(path.parent / link if link else path, anchor)
    ]


def is_there(page, anchor):
    return page.exists() and (not anchor or anchor in anchors(page))


@cache
def anchors(page):
    """The headings of a page as GitHub and MyST spell them in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_paths_in_documents_exist():
    """A path from the root of the repository, or from container/ on its page, is there."""
    assert [] == [
        (str(path.relative_to(ROOT)), name)
        for path in DOCUMENTS
        for name in sorted(paths_in(path))
        if not ((ROOT / name).exists() or (path.parent / name).exists())
    ]


def paths_in(path):
    """Directories in backticks, and files anywhere, also in commands and drawings."""
    text = path.read_text()
    folders = re.findall(rf"`((?:{TOP}|{IN_CONTAINER})/[\w./-]+)`", text)
    files = re.findall(rf"(?<![\w./-])({TOP}/[\w./-]+\.(?:py|cc|h|md|json|ipynb|txt))\b", text)
    return {*folders, *files}


def test_modules_in_documents_exist():
    """A dotted name of ours is that of a module, or of something in it."""
    assert [] == [
        (str(path.relative_to(ROOT)), name)
        for path in DOCUMENTS
        for name in sorted(set(re.findall(MODULE, prose(path))))
        if not resolves(name)
    ]


def test_glossary_says_where():
    """Each term has a meaning, and a place that exists."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|", glossary(), re.MULTILINE)
    terms = [term for term, _, _ in rows]
    nowhere = [
        (term, where)
        for term, _, where in rows
        if not ((ROOT / where).exists() if "/" in where else resolves(where))
    ]

    assert 40 <= len(rows)
    assert [] == nowhere
    assert sorted(set(terms)) == sorted(terms)


def test_every_term_of_the_glossary_has_a_place():
    """Tables with a column `where` leave it empty in no row."""
    rows = [line for line in glossary().splitlines() if line.startswith("| ")]
    long = [row for row in rows if row.count(" | ") == 3 and not row.startswith("| term |")]

    assert [] == [row for row in long if not re.search(r"\| `[^`]+` \|", row)]


def glossary():
    return (ROOT / "docs/glossary.md").read_text()


def resolves(name):
    """Whether a dotted name is that of a module, or of a class, function or name in one.

    Nothing is imported: frameworks take seconds.
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        folder = PACKAGES[parts[0]].joinpath(*parts[:count])
        for file in (folder.with_suffix(".py"), folder / "__init__.py"):
            if file.exists():
                rest = parts[count:]
                return not rest or rest[0] in names_in(file)
    return False


@cache
def names_in(file):
    """What a module defines, imports or lists."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # names that load on first touch are in __all__
    return found


@pytest.mark.parametrize("page", API)
def test_reference_has_every_public_name(page):
    """The page of a module documents each name of its __all__, once."""
    tree = ast.parse((ROOT / API[page]).read_text())
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    text = (ROOT / f"docs/api/{page}.md").read_text()
    shown = [
        name.rpartition(".")[2] if name.startswith("smdist") else name
        for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text, re.MULTILINE)
    ]

    assert [] == sorted(set(listed) - set(shown))
    assert len(set(shown)) == len(shown)


def test_front_page_leads_to_every_page():
    """The navigation of the site follows its links; a page without one could not be found."""
    front = ROOT / "docs/index.md"
    linked = {
        (front.parent / link).resolve()
        for link in re.findall(r"\]\(([^)#:]+\.md)\)", front.read_text())
    }

    assert [] == sorted(
        str(page)
        for page in DOCUMENTS
        if ROOT / "docs" in page.parents and page not in linked | {front}
    )


def test_readme_is_short_and_in_order():
    """One page answers a SageMaker user's question; all else is in docs/."""
    text = (ROOT / "README.md").read_text()

    assert README_LINES >= len(text.splitlines())
    assert README_ORDER == re.findall(r"^## (.+)$", text, re.MULTILINE)


def test_python_in_documents_can_be_read():
    """Every block of Python is Python."""
    for path in DOCUMENTS:
        for _, block in re.findall(PYTHON, path.read_text(), re.DOTALL | re.MULTILINE):
            ast.parse(textwrap.dedent(block), filename=str(path))


def test_distributions_are_those_of_the_code():
    """`make docs` was run after the last change of the table of strategies."""
    page = ROOT / "docs/distributions.md"
    written = runpy.run_path(str(page.with_suffix(".py")))["written"]

    assert written(page.read_text()) == page.read_text()
    assert all(f"`{key}`" in page.read_text() for key in SUPPORT)


def test_document_of_hyperparameters_has_every_key():
    """docs/hyperparameter_format.md lists each option, and its example is what we write."""
    text = (ROOT / "docs/hyperparameter_format.md").read_text()

    assert [] == [f.name for f in fields(DataParallel) if f"`dataparallel.{f.name}`" not in text]
    assert render(DataParallel()) in text


def test_document_of_tuning_has_every_option():
    """docs/tuning.md lists each option of DataParallel."""
    text = (ROOT / "docs/tuning.md").read_text()

    assert [] == [f.name for f in fields(DataParallel) if f"| `{f.name}` |" not in text]


def test_documents_show_the_demo_as_it_is():
    """What docs/first_job.md shows of the job is what `make demo` runs, paths aside."""
    demo = (ROOT / "notebooks/digits/demo.py").read_text()
    shown = (ROOT / "docs/first_job.md").read_text()
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
