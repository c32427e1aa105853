# SPDX-License-Identifier: Apache-2.0
"""Check for SageMaker's SDK, and the error without it."""

import logging
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.estimators import sagemaker_sdk


def test_missing_sdk(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sagemaker_sdk, "version", version)
    with pytest.raises(SetupError) as caught:
        sagemaker_sdk.check_sdk()

    assert str(caught.value) == (
        "SageMaker's Python SDK is not installed: the Estimators of sagemaker_dist need its"
        " version 2. In a clone of sagemaker-dist, run: pip install '.[v2]'."
    )


@pytest.mark.parametrize(
    ("installed", "found"),
    [({"sagemaker": "3.27.0"}, "3.27.0"), ({"sagemaker-train": "1.27.0"}, "3, its sagemaker-tr")],
)
def test_sdk_without_estimators(monkeypatch, installed, found):
    """With version 3, the hint is the same job for ModelTrainer; tests/trainer runs it."""

    def version(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(sagemaker_sdk, "version", version)
    with pytest.raises(SetupError) as caught:
        sagemaker_sdk.check_sdk()

    assert "unsupported" == caught.value.kind
    assert found in caught.value.what
    assert "    trainer = ModelTrainer(\n" in caught.value.hint
    assert "distributed=DataParallelConfig()" in caught.value.hint


def test_switches_last_as_long_as_the_longest_thread():
    """Switches stay set until the last thread leaves; processes started meanwhile do not inherit
    them.
    """
    name = "SAGEMAKER_SUPPRESS_V2_WARNING"
    before = os.environ.get(name)
    first, second = sagemaker_sdk.quiet(), sagemaker_sdk.quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "1" == os.environ[name]
    with sagemaker_sdk.user_environment():
        assert before == os.environ.get(name)
    assert "1" == os.environ[name]
    del os.environ[name]
    second.__exit__(None, None, None)

    assert before == os.environ.get(name)


def test_errors_look_as_they_did_before_the_import():
    """Importing the SDK does not replace the traceback hooks."""
    program = (
        "import sys; hook = sys.excepthook\n"
        "from sagemaker_dist import Estimator, HuggingFace, LocalSession, PyTorch, TensorFlow\n"
        "assert sys.excepthook is hook, sys.excepthook"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (0, "") == (done.returncode, done.stderr)


def test_the_hooks_of_a_notebook_come_back(monkeypatch):
    class Shell:
        def showtraceback(self):
            """Method that IPython defines on its class, and that others replace on the instance."""

    shell = Shell()
    shell.showsyntaxerror = print
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with sagemaker_sdk.own_tracebacks():
        shell.showtraceback = shell._showtraceback = shell.showsyntaxerror = repr

    assert {"showsyntaxerror": print} == vars(shell)


def test_quiet_holds_back_asides_and_leaves_the_environment_as_it_was(caplog, monkeypatch):
    before = dict(os.environ)
    logger = logging.getLogger("sagemaker.config")
    monkeypatch.setattr(logger, "propagate", False)  # the SDK changes it in some of its modules
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    with caplog.at_level(logging.INFO, logger="sagemaker.config"), sagemaker_sdk.quiet():
        logger.info("an aside")
        logger.warning("a warning")

    assert ["a warning"] == [record.message for record in caplog.records]
    assert before == dict(os.environ)
