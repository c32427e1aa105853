# SPDX-License-Identifier: Apache-2.0
"""Of several failures, the cause is told."""

import pytest

from sagemaker_dist.runners.local.reasons import Failure, choose_reason


def failure(text="", ending="It ended.", asked=False):
    return Failure(text=text, ending=ending, asked=asked)


ECHO = failure("rank 0: PeerError: algo-2 closed its connection")
TORCH = failure("rank 0: torch.distributed.DistBackendError: NCCL")
GLOO = failure("rank 0: RuntimeError: [pair.cc:553] Connection closed by peer [::1]:5")
TENSORFLOW = failure("rank 0 exited with code 1: tf.errors.AbortedError: rank 1 on b is gone")
TOLD = failure("rank 0 exited with code 1: ValueError: rank 1 on algo-2 raised ValueError: nope")
CAUSE = failure("rank 1: ValueError: nope")
LATER = failure("rank 2: ValueError: later")
KILLED = failure(ending="The launcher of algo-2 was killed by SIGKILL.")
ASKED = failure(asked=True)


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([ECHO, CAUSE], CAUSE.text),
        ([TORCH, GLOO, CAUSE, LATER], CAUSE.text),
        ([TENSORFLOW, TOLD, CAUSE], CAUSE.text),
        ([LATER, CAUSE], LATER.text),
        ([ECHO, ASKED], ECHO.text),
        ([ECHO, KILLED], KILLED.ending),
        ([ASKED], "A host failed."),
        ([failure("x" * 2000)], "x" * 1024),
    ],
)
def test_reason(failures, reason):
    assert reason == choose_reason(failures)
