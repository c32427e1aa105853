# SPDX-License-Identifier: Apache-2.0
"""AWS's training toolkit, unmodified, starts the sagemaker-dist launcher in an image of its own.

Its wheels are made once, in build/toolkit-wheels: it comes as source and needs gcc.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from boxes import running, said, status_of, until_there, write_base

from sagemaker_dist.contract import DataParallel

pytestmark = pytest.mark.timeout(600)  # the first test makes the wheels and the image
WHEELS = Path(__file__).parents[2] / "build/toolkit-wheels"
PACKAGE = "sagemaker-training==5.1.4"
TAG = "smdist-test-toolkit"
ENVIRONMENT = "ENV SAGEMAKER_TRAINING_MODULE=smdist.launch.training_toolkit:main"


@pytest.fixture(scope="session")
def wheels():
    """The toolkit and what it needs."""
    made = WHEELS / PACKAGE
    if not made.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        command = [*pip, "wheel", "--quiet", "--wheel-dir", WHEELS, PACKAGE]
        subprocess.run(command, check=True, timeout=300)
        made.touch()
    return WHEELS


@pytest.fixture(scope="module")
def toolkit(engine, image, wheels):
    """An image whose `train` is the toolkit's, which was installed after ours."""
    install = ["--no-index", "--find-links", "/wheels", "--no-cache-dir", "--quiet", PACKAGE]
    mounts = {str(wheels): {"bind": "/wheels", "mode": "ro"}}
    with running(engine, image.name, None, ["pip3", "install", *install], volumes=mounts) as pip:
        assert 0 == status_of(pip, 120), said(pip)
        made = pip.commit(TAG, changes=[ENVIRONMENT, 'ENTRYPOINT ["train"]', "CMD []"])
    yield TAG
    engine.images.remove(made.id, force=True)


def test_success_is_told_as_the_toolkit_does(engine, toolkit, tmp_path):
    """The ranks of our options train below the toolkit's `train`."""
    script = "import os\nopen(f'/opt/ml/model/{os.environ[\"RANK\"]}', 'w').close()"
    base = write_base(tmp_path / "ml", script, options=DataParallel(processes_per_host=2))
    with running(engine, toolkit, base, "train") as container:
        assert 0 == status_of(container), said(container)
        assert "Imported framework smdist.launch.training_toolkit" in said(container)

    assert ["0", "1"] == sorted(path.name for path in (base / "model").iterdir())
    assert "" == (base / "output/success").read_text()
    assert not (base / "output/failure").exists()


def test_failure_is_the_ranks_own(engine, toolkit, tmp_path):
    """The toolkit neither overwrites the reason nor changes the status."""
    script = "import os\nif os.environ['RANK'] == '1':\n    print('so')\n    raise SystemExit(7)"
    base = write_base(tmp_path / "ml", script, options=DataParallel(processes_per_host=2))
    with running(engine, toolkit, base, "train") as container:
        assert 7 == status_of(container), said(container)

    assert "algo-1 rank 1 exited with code 7" == (base / "output/failure").read_text()
    assert not (base / "output/success").exists()


def test_stop_reaches_the_script(engine, toolkit, tmp_path):
    """The toolkit is process 1 and knows no signal of its own."""
    script = (
        "import os, signal, sys, time\n"
        "def save(*_):\n    open('/opt/ml/model/saved', 'w').close()\n    sys.exit(0)\n"
        "signal.signal(15, save)\nopen('/opt/ml/model/ready', 'w').close()\ntime.sleep(120)"
    )
    base = write_base(tmp_path / "ml", script)
    with running(engine, toolkit, base, "train") as container:
        until_there(base / "model/ready", container)
        asked = time.monotonic()
        container.stop(timeout=60)
        seconds = time.monotonic() - asked

        assert 143 == status_of(container), said(container)
    assert seconds < 30  # SIGKILL comes after 60
    assert (base / "model/saved").exists()
    assert "the job was stopped by SIGTERM" == (base / "output/failure").read_text()


@pytest.mark.parametrize("setting", [{}, {"SAGEMAKER_TRAINING_MODULE": ""}])
def test_our_own_train_needs_no_toolkit(engine, toolkit, tmp_path, setting):
    """Whichever package put its `train` on the path last, `python -m smdist.launch` is ours."""
    base = write_base(tmp_path / "ml", "raise SystemExit(5)")
    own = {"entrypoint": ["python3", "-m", "smdist.launch"], "environment": setting}
    with running(engine, toolkit, base, "train", **own) as container:
        assert 5 == status_of(container), said(container)

    assert "algo-1 exited with code 5" == (base / "output/failure").read_text()
