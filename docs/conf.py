# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation site, which `make site` builds into build/site.

The source directory is the root of the repository, so that one relative link works in the site
and on GitHub alike. The navigation follows the headings and links of docs/index.md.
"""

import re
from importlib.metadata import version as version_of

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

project = "sagemaker-dist"
author = "the authors of sagemaker-dist"
copyright = f"{author}; Apache-2.0"
release = version = version_of("sagemaker-dist")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "container/README.md", "benchmarks/README.md"]
exclude_patterns = [".*", "build", "docs/reading"]

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say what a value means; the signature has the types
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Names in signatures and under Raises need no page of their own; links of pages are MyST's.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"sagemaker-dist {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["redirect"]
html_copy_source = False

_LINK = re.compile(r"\[([^]]+)\]\(([^)#:]+)\.md\)")
_SINGLE_BACKTICKS = re.compile(r"(?<![`:\w])`([^`\n]+)`(?![`_])")


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Add one hidden table of contents for each section of the front page."""
    if name != app.config.root_doc:
        return
    for section in source[0].split("\n## ")[1:]:
        links = {page: title for title, page in _LINK.findall(section)}
        pages = "\n".join(f"{title} <{page}>" for page, title in links.items())
        caption = section.partition("\n")[0]
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def plain_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring into reStructuredText: `code` is code, and so is what stands indented."""
    text = [_SINGLE_BACKTICKS.sub(r"``\1``", line) for line in lines]
    # An empty comment: of a value, napoleon takes what stands before a first colon for its type.
    lines[:] = ["..", ""]
    is_code = False
    for line in text:
        is_indented = line.startswith("    ")
        if is_indented and not is_code and not lines[-1]:
            lines += ["::", ""]
            is_code = True
        elif line and not is_indented:
            is_code = False
        lines.append(line)


def setup(app: Sphinx) -> None:
    """Connect the two steps above; docstrings pass ours before napoleon reads their sections."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
