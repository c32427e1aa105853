# SPDX-License-Identifier: Apache-2.0
"""What a number of ranks means: as many on one host, like the one that the model is on."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.links import GPUS, PROCESSES

_USABLE: Final = 0.9  # of a GPU's memory: the rest is CUDA's, NCCL's, and lost to fragments


def cluster_of(world: int | Cluster, model: nn.Module) -> Cluster:
    """The cluster itself, or one host with so many ranks.

    Raises:
        OptionError: It is neither, or less than one rank.
    """
    if isinstance(world, Cluster):
        return world
    if not isinstance(world, int) or isinstance(world, bool) or world < 1:
        why = "it is the number of ranks of one host, or a Cluster of several"
        raise OptionError(f"world is {world!r}", why, "Pass an integer of at least 1")
    on = next((each.device for each in model.parameters() if not each.is_meta), None)
    if on is None or on.type != "cuda":
        return Cluster(ranks_per_host=world, inside=PROCESSES, across=PROCESSES)
    facts = torch.cuda.get_device_properties(on)
    device = Device(name=facts.name, memory_bytes=int(facts.total_memory * _USABLE))
    return Cluster(ranks_per_host=world, inside=GPUS, across=GPUS, device=device)
