# SPDX-License-Identifier: Apache-2.0
"""Memory of a rank: it holds the values of its own stages, and nothing else.

skeleton       a copy of the whole model without values; other batches are captured with it
release        removes values of other stages from memory, in the user's model too
materialize    gives values to this rank's stages of a model that was made without values
delay_param_initialization, model_creation      make models without values
"""

from smdist.modelparallel.torch.materialization.delayed_init import (
    delay_param_initialization,
    model_creation,
)
from smdist.modelparallel.torch.materialization.materialize import materialize
from smdist.modelparallel.torch.materialization.release import release
from smdist.modelparallel.torch.materialization.skeleton import skeleton

__all__ = [
    "delay_param_initialization",
    "materialize",
    "model_creation",
    "release",
    "skeleton",
]
