# SPDX-License-Identifier: Apache-2.0
"""Choice of the root cause among several failures."""

import pytest

from sagemaker_dist.runners.local.opt_ml_tree import Failure, root_cause


def failure(text="", ending="It ended.", was_stopped=False, **fields):
    return Failure(text=text, ending=ending, was_stopped=was_stopped, fields=fields)


ECHO = failure("echo", is_secondary=True, kind="lost", culprit=1)
OTHER_ECHO = failure("other echo", is_secondary=True, kind="aborted", culprit=1)
CAUSE = failure("rank 1: ValueError: nope")
LATER = failure("rank 2: ValueError: later")
KILLED = failure(ending="The launcher of algo-2 was killed by SIGKILL.")
STOPPED = failure(was_stopped=True)
LEFT = failure("rank 1 left", was_stopped=True, is_secondary=True, kind="left", culprit=1)


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([ECHO, CAUSE], CAUSE.text),
        ([OTHER_ECHO, ECHO, CAUSE, LATER], CAUSE.text),
        ([failure("rank 1 closed its connection"), ECHO], "rank 1 closed its connection"),
        ([LATER, CAUSE], LATER.text),
        ([ECHO, STOPPED], ECHO.text),
        ([ECHO, LEFT], LEFT.text),
        ([LEFT, CAUSE], CAUSE.text),
        ([ECHO, KILLED], KILLED.ending),
        ([STOPPED], "A host failed."),
        ([failure("x" * 2000)], "x" * 1024),
    ],
)
def test_reason(failures, reason):
    assert reason == root_cause(failures).reason
