# SPDX-License-Identifier: Apache-2.0
"""The launcher's folder with the secret: gone at the end, also if the launcher was killed."""

import fcntl
import stat
import subprocess
import sys
import tempfile

import pytest

from smdist.launch.private_folder import private_folder, remove_abandoned

HOLDER = """
import time
from smdist.launch.private_folder import private_folder
with private_folder() as folder:
    (folder / "secret").write_text("s")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_no_other_user_may_enter_and_it_is_gone_at_the_end(directory):
    with private_folder() as folder:
        assert [folder] == list(directory.iterdir())
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    assert [] == list(directory.iterdir())


def test_the_folder_of_a_killed_launcher_is_removed_and_no_other(directory):
    (directory / "smdist-launch-being-made").mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        (directory / "smdist-launch-link").symlink_to(directory)
        held = holder.stdout.readline().decode().strip()
        with private_folder() as mine:
            beside = {each.name for each in directory.iterdir()} - {mine.name}
        holder.kill()
    with private_folder() as mine:
        left = {each.name for each in directory.iterdir()} - {mine.name}

    assert beside - left == {held.rpartition("/")[2]}
    assert left == {"smdist-launch-being-made", "smdist-launch-link"}


def test_a_launcher_that_starts_meanwhile_takes_no_folder_away(directory, monkeypatch):
    """The other launcher looks between the making of the first folder and its lock."""
    lock, others = fcntl.flock, [directory]

    def late(file, operation):
        while others:
            remove_abandoned(others.pop())
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with private_folder() as folder:
        assert [folder] == list(directory.iterdir())
        remove_abandoned(directory)
        assert [folder] == list(directory.iterdir())
    assert [] == list(directory.iterdir())
