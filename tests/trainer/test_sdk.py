# SPDX-License-Identifier: Apache-2.0
"""What a user reads who has another SDK of SageMaker than was asked for."""

import re
import subprocess
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version

import pytest

import sagemaker_dist
from sagemaker_dist.errors import SetupError
from sagemaker_dist.trainer import check
from sagemaker_dist.trainer import model_trainer_sdk as installed


def _is_v3():
    try:
        return int(version("sagemaker-train").partition(".")[0]) >= 1
    except PackageNotFoundError:
        return False


needs_v3 = pytest.mark.skipif(not _is_v3(), reason="SageMaker's SDK v2 has the Estimators")


@needs_v3
@pytest.mark.parametrize("name", ["PyTorch", "Estimator", "HuggingFace", "LocalSession"])
def test_an_estimator_on_v3_shows_the_same_job(name):
    with pytest.raises(SetupError) as caught:
        getattr(sagemaker_dist, name)

    assert "unsupported" == caught.value.kind


@needs_v3
def test_the_job_that_is_shown_is_one(arguments, sdk):
    """Its code runs as it stands, up to what needs AWS."""
    with pytest.raises(SetupError) as caught:
        sagemaker_dist.PyTorch  # noqa: B018  # the touch is the test
    code = textwrap.dedent("\n".join(re.findall(r"^    .*$|^$", caught.value.hint, re.MULTILINE)))
    here = arguments()
    code = code.replace('source_dir="source"', f"source_dir={here['source_code'].source_dir!r}")
    code = code.replace(
        "ModelTrainer(\n",
        f"ModelTrainer(training_mode=Mode.LOCAL_CONTAINER,"
        f" local_container_root={here['local_container_root']!r},",
    )
    code = code.replace("trainer.train(", "check(trainer, ")
    names = {"Mode": sdk.Mode, "check": check}
    exec(code, names)

    assert "DataParallelConfig" == type(names["trainer"].distributed).__name__


def test_no_sdk_at_all(monkeypatch):
    monkeypatch.setattr(installed, "import_module", _nothing)
    with pytest.raises(SetupError) as caught:
        installed.find_sdk()

    assert "missing" == caught.value.kind
    assert "sagemaker_dist.trainer needs its ModelTrainer" == caught.value.why


def _nothing(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_broken_sdk_says_what_it_lacks(monkeypatch):
    """Not that there is none."""

    def broken(name):
        raise ModuleNotFoundError("No module named 'graphene'", name="graphene")

    monkeypatch.setattr(installed, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="graphene"):
        installed.find_sdk()


def test_naming_the_room_loads_nothing():
    code = "import sys, sagemaker_dist.trainer; print('sagemaker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert "False" == done.stdout.strip()
