# SPDX-License-Identifier: Apache-2.0
"""The image works for a user who is only a number, without an account or a home."""

import json
import zipfile

import pytest
from boxes import running, said, status_of, write_base

from sagemaker_dist.contract import DataParallel

pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
SCRIPT = """
import getpass, json, os
import torch
import torch.distributed as dist
import smdist.dataparallel.torch
import brought
dist.init_process_group("smdist")
rank = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(rank)
if dist.get_rank() == 0:
    home = os.path.expanduser("~")
    seen = {"user": getpass.getuser(), "uid": os.getuid(), "sum": rank.item(), "home": home}
    seen |= {"brought": brought.__file__, "writable": os.access(home, os.W_OK)}
    json.dump(seen, open("/opt/ml/model/seen.json", "w"))
dist.barrier()
"""


def write_wheel(folder):
    """A package that requirements.txt asks for, without a network."""
    info = "brought-1.0.dist-info"
    with zipfile.ZipFile(folder / "brought-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    (folder / "requirements.txt").write_text("./brought-1.0-py3-none-any.whl\n")


def test_a_number_trains(engine, image, tmp_path):
    """Packages are installed, ranks meet, the model is this user's, nothing stays in /tmp."""
    base = write_base(tmp_path / "ml", SCRIPT, options=DataParallel(processes_per_host=2))
    write_wheel(base / "code")
    with running(engine, image.name, base, user="12345:12345") as container:
        assert 0 == status_of(container), said(container)
        changed = [change["Path"] for change in container.diff() or []]
    seen = json.loads((base / "model/seen.json").read_text())

    assert ("user12345", 12345, 3.0, True) == tuple(
        seen[key] for key in ("user", "uid", "sum", "writable")
    )
    assert seen["brought"].startswith(seen["home"])
    assert 12345 == (base / "model/seen.json").stat().st_uid
    assert [] == [path for path in changed if "smdist" in path]


def test_a_directory_that_is_not_the_users_is_reported(engine, image, tmp_path):
    """Docker makes /opt/ml for root where only parts of it are mounted."""
    base = write_base(tmp_path / "ml", "")
    parts = {str(base / "input"): {"bind": "/opt/ml/input", "mode": "ro"}}
    with running(engine, image.name, base, user="12345", volumes=parts) as container:
        status = status_of(container)
        text = said(container)

    assert 1 == status
    assert "the directory /opt/ml/code cannot be created: Permission denied. Allow the" in text
    assert "Traceback" not in text
