# SPDX-License-Identifier: Apache-2.0
"""Build context of the image, from a clone and from an installed wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sagemaker_dist.packaging.context import build_context

ROOT = Path(__file__).parents[3]
LIST = """
import json
from sagemaker_dist.packaging.context import build_context
with build_context() as at:
    print(json.dumps(sorted(str(p.relative_to(at)) for p in at.rglob("*") if p.is_file())))
"""


@pytest.fixture(autouse=True)
def _bare_path(monkeypatch):
    monkeypatch.delenv("PYTHONPATH")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path_factory):
    """A home of its own."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    return home


def _files(at: Path) -> list[str]:
    return sorted(str(path.relative_to(at)) for path in at.rglob("*") if path.is_file())


def test_context_of_a_clone(tmp_path):
    """The context has the Dockerfile's files and nothing compiled, and is removed at the end."""
    (tmp_path / "a-1-py3-none-any.whl").write_text("wheel")
    (tmp_path / "notes.txt").touch()
    with build_context(tmp_path) as context:
        found = _files(context)

    assert not context.exists()
    assert {"pyproject.toml", "README.md", "LICENSE", "container/Dockerfile"} <= set(found)
    assert ["wheelhouse/a-1-py3-none-any.whl"] == [f for f in found if f.startswith("wheelhouse")]
    assert [] == [name for name in found if name.endswith((".pyc", ".so"))]


def test_further_builds_use_the_same_directory(home):
    """BuildKit keeps what it has received by the directory; two builds at once have two."""
    with build_context() as first, build_context() as beside:
        (first / "more").touch()
    place = home / ".sagemaker-dist" / "image-context"
    place.mkdir()
    (place / "left by a build that was killed").touch()
    with build_context() as second:
        found = _files(second)

    assert place == first == second
    assert beside.parent != first.parent
    assert not {"more", "left by a build that was killed"} & set(found)
    assert not place.exists()
    assert not beside.exists()


def test_home_without_write_access(home):
    """A temporary directory serves where the user's home is a file or is read-only."""
    (home / ".sagemaker-dist").touch()
    with build_context() as context:
        assert "container/Dockerfile" in _files(context)

    assert not context.exists()


@pytest.mark.slow
def test_wheel_ships_the_context(tmp_path):
    """An installed wheel gives the same context as a clone."""
    build = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheels, at = tmp_path / "wheels", tmp_path / "site"
    quiet = {"check": True, "capture_output": True}
    subprocess.run([*build, "wheel", "--no-deps", "-q", "-w", wheels, ROOT], **quiet)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([*build, "install", "--no-deps", "-q", "-t", at, wheel], **quiet)
    environment = {**os.environ, "PYTHONPATH": str(at)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIST], env=environment, cwd=tmp_path, text=True, **quiet
    )
    with build_context() as context:
        expected = _files(context)

    assert expected == json.loads(done.stdout)
