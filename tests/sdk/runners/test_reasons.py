# SPDX-License-Identifier: Apache-2.0
"""Of several failures, the cause is told."""

import pytest

from sagemaker_dist.runners.processes.reasons import Failure, choose_reason


def failure(host, text="", exit_code=1, asked=False):
    return Failure(host=host, exit_code=exit_code, text=text, asked=asked)


ECHO = failure("algo-1", "rank 0: PeerError: algo-2 closed its connection")
TORCH = failure("algo-1", "rank 0: torch.distributed.DistBackendError: NCCL")
GLOO = failure("algo-1", "rank 0: RuntimeError: [pair.cc:553] Connection closed by peer [::1]:5")
CAUSE = failure("algo-2", "rank 1: ValueError: nope")
LATER = failure("algo-3", "rank 2: ValueError: later")
KILLED = failure("algo-2", exit_code=-9)
ASKED = failure("algo-4", exit_code=143, asked=True)


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([ECHO, CAUSE], CAUSE.text),
        ([TORCH, GLOO, CAUSE, LATER], CAUSE.text),
        ([LATER, CAUSE], LATER.text),
        ([ECHO, ASKED], ECHO.text),
        (
            [ECHO, KILLED],
            "The launcher of algo-2 was killed by SIGKILL. It may have run out of memory.",
        ),
        ([ASKED], "A host failed."),
        ([failure("algo-1", "x" * 2000)], "x" * 1024),
    ],
)
def test_reason(failures, reason):
    assert reason == choose_reason(failures)
