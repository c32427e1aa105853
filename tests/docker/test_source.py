# SPDX-License-Identifier: Apache-2.0
"""The code of a job comes as a tarball on SageMaker: the image's own Python unpacks it."""

import pytest

pytestmark = pytest.mark.timeout(300, func_only=True)

UNPACK = """
import io, sys, tarfile
from pathlib import Path
from sagemaker_dist.errors import LaunchError
from smdist.code_source import Source
from smdist.launch.user_code import fetch

def pack(*names):
    with tarfile.open("/tmp/source.tar.gz", "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())

def unpack():
    source = Source(program="train.py", submit_directory="/tmp/source.tar.gz")
    return fetch(source, Path("/tmp/code"))

pack("train.py", "lib/part.py")
print(unpack(), Path("/tmp/code/lib/part.py").is_file())
pack("train.py", "../outside.py")
try:
    unpack()
except LaunchError as error:
    print("refused:", error.what)
print(Path("/tmp/outside.py").exists())
"""


def test_a_tarball_is_unpacked_and_one_that_leads_outside_is_refused(engine, image):
    """Also by a Python of before tarfile's filters, as Debian 12 has it."""
    command = ["python3", "-c", UNPACK]
    said = engine.containers.run(image.name, command, remove=True, network_mode="none").decode()

    assert [
        "/tmp/code/train.py True",
        "refused: the code at /tmp/source.tar.gz cannot be copied to this host",
        "False",
    ] == said.splitlines()
