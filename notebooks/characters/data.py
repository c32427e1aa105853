# SPDX-License-Identifier: Apache-2.0
"""Training text that every machine has: Python's own `help()` topics, as a file of a channel."""

from pathlib import Path
from pydoc_data.topics import topics


def write_text(folder: Path) -> Path:
    """Write about 700,000 characters; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder
