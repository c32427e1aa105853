# SPDX-License-Identifier: Apache-2.0
"""The end of ModelTrainer's sm_train.sh: make way for the launcher of sagemaker_dist.

ModelTrainer uploads this directory with every job and runs this file where the code
lies. The launcher reads SageMaker's files itself: what the shell made of them is
not asked. Standard library only, and nothing of ours that the image might lack.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

FAILURE = Path("/opt/ml/output/failure")
NOT_THERE = (
    "The image has no sagemaker-dist-runtime: distributed=DataParallelConfig() starts its launcher."
    " Pass a training_image of `sagemaker-dist image build`, or install the runtime in this one."
)


def main() -> None:
    """Become the launcher, or say why that cannot be."""
    os.chdir("/")  # where no file of the user's is taken for a module
    if find_spec("smdist") is None:
        FAILURE.write_text(NOT_THERE, encoding="utf-8")
        sys.exit(NOT_THERE)
    # sm_train.sh has unpacked the code and installed what it requires.
    environ = {**os.environ, "SMDIST_PREPARED": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "smdist.launch", "train"], environ)  # noqa: S606  # no shell is meant


if __name__ == "__main__":
    main()
