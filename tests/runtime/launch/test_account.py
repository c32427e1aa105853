# SPDX-License-Identifier: Apache-2.0
"""A user without an entry gets a home and a name; existing ones are kept."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smdist.launch.container_user import account_environment

NUMBER = """
import getpass, os, sys
from pathlib import Path
from smdist.launch.container_user import account_environment
os.setgid(12345)
os.setuid(12345)
os.environ.update(account_environment(dict(os.environ), Path(sys.argv[1])))
print(getpass.getuser(), os.path.expanduser("~"), os.access(os.path.expanduser("~"), os.W_OK))
"""


def test_whoever_has_a_home_keeps_it(tmp_path):
    assert {} == account_environment({"HOME": str(tmp_path), "USER": "ada"}, tmp_path)


def test_a_home_that_is_no_directory_is_replaced(tmp_path):
    """Docker sets "/" or the home of the image, which may be read-only or missing."""
    environ = {"HOME": str(tmp_path / "not-there"), "LOGNAME": "ada"}

    assert {"HOME": str(tmp_path / "home")} == account_environment(environ, tmp_path)
    assert (tmp_path / "home").is_dir()


@pytest.fixture
def folder():
    """Anybody's; pytest's own temporary directories are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_number_without_an_account_has_both(folder):
    """Where getpass.getuser() would fail and HOME is not its own."""
    bare = {key: value for key, value in os.environ.items() if key in {"PATH", "PYTHONPATH"}}
    done = subprocess.run(
        [sys.executable, "-B", "-c", NUMBER, str(folder)],
        env={**bare, "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert f"user12345 {folder}/home True\n" == done.stdout, done.stderr
