# SPDX-License-Identifier: Apache-2.0
"""Steps of a pipeline: `smp.step` around a function of the user's, and what it returns."""

from smdist.modelparallel.torch.step.decorator import step
from smdist.modelparallel.torch.step.output import StepOutput

__all__ = ["StepOutput", "step"]
