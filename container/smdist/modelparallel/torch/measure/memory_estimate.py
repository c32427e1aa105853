# SPDX-License-Identifier: Apache-2.0
"""Estimate of the memory of a larger microbatch, from costs measured with a smaller one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import nn

from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph, Node
from smdist.modelparallel.torch.accelerator import accelerator_of

_AT_ONCE: Final = 4  # inputs, results, their gradients, and tensors saved for the backward pass
_MEMINFO: Final = Path("/proc/meminfo")
_TEXTS: Final = ("allocate memory", "not enough memory", "out of memory")


def largest_unit_bytes(graph: Graph, costs: Costs, factor: float) -> int:
    """Return the bytes that the largest node needs at least for a larger microbatch.

    A node is a module or function in the model's graph. Copies of weights, and memory that
    is needed only while a pass runs, are not counted.

    Args:
        graph: Graph of the model for the smaller microbatch.
        costs: Costs measured with the smaller microbatch.
        factor: Ratio of the numbers of samples: larger microbatch / smaller microbatch.

    Returns:
        Number of bytes.
    """
    return max((_bytes(graph, costs, node, factor) for node in graph.nodes), default=0)


def _bytes(graph: Graph, costs: Costs, node: Node, factor: float) -> int:
    weights = sum(graph.parameter[name].num_bytes for name in node.parameters)
    grows = costs.of(node.name).saved_bytes - weights
    written = sum(value.num_bytes for value in node.writes)
    return round(factor * max(grows, written))


def measuring_bytes(graph: Graph, costs: Costs, factor: float) -> int:
    """Estimate the bytes that measuring a larger microbatch needs in addition to the model.

    Args:
        graph: Graph of the model for the smaller microbatch.
        costs: Costs measured with the smaller microbatch.
        factor: Ratio of the numbers of samples: larger microbatch / smaller microbatch.
    """
    workspace = max((cost.workspace_bytes for cost in costs.nodes.values()), default=0)
    return workspace + _AT_ONCE * largest_unit_bytes(graph, costs, factor)


def free_bytes(model: nn.Module) -> int | None:
    """Return the free bytes on the model's device; None if the system does not report them."""
    on = accelerator_of(model.parameters())
    if on is not None:
        return int(torch.accelerator.get_memory_info(on)[0])
    if not _MEMINFO.exists():
        return None
    rows = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that the GPU or the host has too little memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
