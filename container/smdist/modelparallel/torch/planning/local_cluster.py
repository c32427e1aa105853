# SPDX-License-Identifier: Apache-2.0
"""Cluster of one host, whose devices are like the device that the model is on."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.default_links import GPUS, PROCESSES
from smdist.modelparallel.torch.accelerator import accelerator_of, name_of

_USABLE: Final = 0.9  # share of a GPU's memory; CUDA, NCCL and fragmentation take the rest


def cluster_of(world: int | Cluster, model: nn.Module) -> Cluster:
    """Return the cluster that `smp.plan` plans for.

    Args:
        world: A Cluster, which is returned unchanged, or the number of ranks of one host.
        model: The model. If it is on a GPU, all GPUs of the host are assumed to be of this type.
            Otherwise the host has no device of known memory or speed.

    Raises:
        OptionError: `world` is neither a Cluster nor an integer of at least 1.
    """
    if isinstance(world, Cluster):
        return world
    if not isinstance(world, int) or isinstance(world, bool) or world < 1:
        why = "it has to be the number of ranks of one host, or a smp.Cluster"
        hint = "Pass an integer of at least 1, or a smp.Cluster"
        raise OptionError(f"world is {world!r}", why, hint, about="world")
    on = accelerator_of(model.parameters())
    if on is None:
        return Cluster(ranks_per_host=world, inside=PROCESSES, across=PROCESSES)
    total = torch.accelerator.get_memory_info(on)[1]
    device = Device(name=name_of(on), memory_bytes=int(total * _USABLE))
    return Cluster(ranks_per_host=world, inside=GPUS, across=GPUS, device=device)
