# SPDX-License-Identifier: Apache-2.0
"""Saving at an interruption, for any framework: SIGTERM reaches all ranks at one step.

    import smdist.checkpoint

    @smdist.checkpoint.on_interrupt
    def save():
        ...

    for batch in batches:
        train(batch)
        smdist.checkpoint.step()  # after an interruption: save() on every rank, then exit code 143

SageMaker sends SIGTERM when a job is stopped, when it has run too long, and when a Spot instance is
taken back. 120 s later it sends SIGKILL.
"""

from smdist.checkpoint.interruption import EXIT_CODE, on_interrupt, should_stop, step

__all__ = ["EXIT_CODE", "on_interrupt", "should_stop", "step"]
