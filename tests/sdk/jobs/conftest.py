# SPDX-License-Identifier: Apache-2.0
"""A job file and its script in the working directory."""

from pathlib import Path
from textwrap import dedent

import pytest


@pytest.fixture
def job_file(tmp_path, monkeypatch):
    """Return a function that writes job.toml in the working directory, beside code/train.py."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = Path("job.toml")
        path.write_text(dedent(text).lstrip("\n"))
        return path

    return write
