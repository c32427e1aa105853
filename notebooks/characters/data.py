# SPDX-License-Identifier: Apache-2.0
"""Training text for the notebook: the texts of Python's `help()`, as a file of a channel."""

from pathlib import Path
from pydoc_data.topics import topics


def write_text(folder: Path) -> Path:
    """Write text.txt, about 700,000 characters, to a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder
