# SPDX-License-Identifier: Apache-2.0
"""Control of a rank's memory, so that a rank has only the values of its own stages.

A tensor without values is on the meta device and takes no memory.

skeleton       copies the whole model without values
release        frees the values of other ranks' stages, in the user's model too
move_stages    moves this rank's stages from the CPU to its accelerator, if the batch is there
materialize    initialises this rank's stages, if the model was created without values
delay_param_initialization, model_creation      create models without values
"""

from smdist.modelparallel.torch.materialization.delayed_init import (
    delay_param_initialization,
    model_creation,
)
from smdist.modelparallel.torch.materialization.materialize import materialize
from smdist.modelparallel.torch.materialization.move_stages import move_stages
from smdist.modelparallel.torch.materialization.release import release
from smdist.modelparallel.torch.materialization.skeleton import skeleton

__all__ = [
    "delay_param_initialization",
    "materialize",
    "model_creation",
    "move_stages",
    "release",
    "skeleton",
]
