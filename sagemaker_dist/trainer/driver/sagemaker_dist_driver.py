# SPDX-License-Identifier: Apache-2.0
"""Start of the sagemaker-dist launcher, as the last step of ModelTrainer's sm_train.sh.

ModelTrainer uploads this directory with every job, and runs this file in the directory of the
user's code. The launcher reads the configuration of the job from SageMaker's files, not from the
variables SM_* that sm_train.sh sets. This file imports only the standard library, because the image
may have no other package.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

FAILURE = Path("/opt/ml/output/failure")
NOT_THERE = (
    "The image has no sagemaker-dist-runtime: distributed=DataParallelConfig() needs its launcher."
    " Pass a training_image of `sagemaker-dist image build`, or install the runtime in your image."
)


def main() -> None:
    """Replace this process by the launcher.

    If the image has no launcher, the reason is written to /opt/ml/output/failure, where SageMaker
    reads it, and the process ends.
    """
    os.chdir("/")  # so that no file of the user is imported in place of a module
    if find_spec("smdist") is None:
        FAILURE.write_text(NOT_THERE, encoding="utf-8")
        sys.exit(NOT_THERE)
    # The launcher must not do this again: sm_train.sh has unpacked the code and installed its
    # requirements.
    environ = {**os.environ, "SMDIST_PREPARED": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "smdist.launch", "train"], environ)  # noqa: S606  # no shell is needed


if __name__ == "__main__":
    main()
