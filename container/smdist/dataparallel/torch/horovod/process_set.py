# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that run collectives of torch tensors without the others."""

from __future__ import annotations

from smdist.dataparallel.process_sets import ProcessSet as _ProcessSet
from smdist.dataparallel.torch.horovod.communicator import Communicator


class ProcessSet(_ProcessSet[Communicator]):
    """Ranks that run collectives of torch tensors without the others."""


global_process_set = ProcessSet([])
