# SPDX-License-Identifier: Apache-2.0
"""Reading and checking of the arguments of `smp.plan`; all faults are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from sagemaker_dist.contract.ranges import size_in_bytes
from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.quantities import shown
from smdist.modelparallel.torch.planning.local_cluster import cluster_of
from smdist.modelparallel.torch.planning.option_checks import option_faults
from smdist.modelparallel.torch.planning.sampler import CostSource, Sampler, check_source
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.program.partition_marks import marks_of


def read_size(size: int | str, name: str) -> int:
    """Return a memory size in bytes.

    Args:
        size: Number of bytes, or text such as "16GiB" or "16 GB".
        name: Name of the argument in errors.

    Raises:
        OptionError: The argument is no size, or less than one byte.
    """
    number = size_in_bytes(size)
    if number is None:
        why = "it has to be a number of bytes, or text such as '16GiB' or '16 GB'"
        raise OptionError(f"{name} is {shown(size)}", why, "Pass one of these", about=name)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Checked arguments of `smp.plan`.

    Attributes:
        batch_size: Number of samples in the batch of one replica.
        cluster: Cluster to plan for.
        memory_bytes: Bytes that a rank may use; None to use the memory of the cluster's device.
        state: Bytes in memory per element of a trained parameter.
        sampler: Source of the graphs and costs of the model.
    """

    batch_size: int
    cluster: Cluster
    memory_bytes: int | None
    state: StateBytes
    sampler: CostSource


def read_request(
    model: nn.Module, example: Any, world: Any, *,
    costs: str, device_memory: int | str | None, state: StateBytes, **options: Any,
) -> Request:  # fmt: skip
    """Read and check the arguments of `smp.plan`.

    Args:
        model, example, world, costs, device_memory, state: Arguments of `smp.plan`.
        options: Further options of `smp.plan`, which are checked here and not returned.

    Raises:
        OptionError: An argument is wrong; the error lists all faults.
    """
    faults: list[OptionError] = []
    batch = cluster = memory = None
    with _kept(faults):
        _require_module(model)
        cluster = cluster_of(world, model)
    with _kept(faults):
        batch = Batch.of(example)
    with _kept(faults):
        memory = None if device_memory is None else read_size(device_memory, "device_memory")
    if options.get("auto_partition", True) is False and isinstance(model, nn.Module):
        options["marks"] = marks_of(model)
    faults += option_faults(cluster, batch.size if batch else None, state=state, **options)
    with _kept(faults):
        check_source(costs)
    raise_all(faults)
    assert batch is not None
    assert cluster is not None
    sampler = Sampler(
        model=model, batch=batch, cluster=cluster, costs=costs,
        memory_bytes=memory or cluster.device.memory_bytes,
    )  # fmt: skip
    return Request(
        batch_size=batch.size, cluster=cluster, memory_bytes=memory, state=state, sampler=sampler
    )


@contextmanager
def _kept(faults: list[OptionError]) -> Iterator[None]:
    try:
        yield
    except OptionError as error:
        faults.append(error)


def _require_module(model: object) -> None:
    require(
        isinstance(model, nn.Module),
        what=f"model is of type {type(model).__name__}",
        why="it has to be a torch.nn.Module",
        hint="Pass the model itself, on the meta device or with values",
        about="model",
    )
