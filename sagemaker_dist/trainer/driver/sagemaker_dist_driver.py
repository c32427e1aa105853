# SPDX-License-Identifier: Apache-2.0
"""Last step of ModelTrainer's sm_train.sh: start the sagemaker-dist launcher.

ModelTrainer uploads this directory with every job and runs this file in the code's
directory. The launcher reads SageMaker's files itself and ignores the shell's variables.
This file imports only the standard library, because the image might lack all else.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

FAILURE = Path("/opt/ml/output/failure")
NOT_THERE = (
    "The image has no sagemaker-dist-runtime: distributed=DataParallelConfig() starts its launcher."
    " Pass a training_image of `sagemaker-dist image build`, or install the runtime in your image."
)


def main() -> None:
    """Replace this process by the launcher, or write why that is not possible."""
    os.chdir("/")  # so that no user file is imported as a module
    if find_spec("smdist") is None:
        FAILURE.write_text(NOT_THERE, encoding="utf-8")
        sys.exit(NOT_THERE)
    # sm_train.sh has unpacked the code and installed what it requires.
    environ = {**os.environ, "SMDIST_PREPARED": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "smdist.launch", "train"], environ)  # noqa: S606  # no shell is needed


if __name__ == "__main__":
    main()
