# SPDX-License-Identifier: Apache-2.0
"""Which values a rank holds: those of its own stages, and of nothing else.

skeleton       a copy of the whole model without values: other batches are captured with it
release        what is on other stages leaves memory, in the user's model too
materialize    a model that was made without values gets those of this rank's stages
delay_param_initialization, model_creation      models are made without values
"""

from smdist.modelparallel.torch.residence.delay import delay_param_initialization, model_creation
from smdist.modelparallel.torch.residence.materialize import materialize
from smdist.modelparallel.torch.residence.release import release
from smdist.modelparallel.torch.residence.skeleton import skeleton

__all__ = [
    "delay_param_initialization",
    "materialize",
    "model_creation",
    "release",
    "skeleton",
]
