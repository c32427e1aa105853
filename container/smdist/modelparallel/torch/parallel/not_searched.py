# SPDX-License-Identifier: Apache-2.0
"""Notes on options that `sagemaker-dist plan` searches, and the search of a job does not."""

from __future__ import annotations

from collections.abc import Iterator

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.note import NOT_SEARCHED, Note
from smdist.modelparallel.torch.parallel.settings import Settings


def not_searched(settings: Settings, cluster: Cluster, tensor_degree: int) -> Iterator[Note]:
    """Yield a note for each option that the search of this job left as it was given.

    Nothing is yielded if the user has fixed the layout.

    Args:
        settings: Settings of the parallel model.
        cluster: Cluster of the search, in which ranks that share tensors are one device.
        tensor_degree: Number of ranks over which tensors are split.
    """
    searches_shards = settings.sharding == "auto"
    if settings.options.pipeline_parallel_degree != "auto" and not searches_shards:
        return
    if not searches_shards and cluster.size > 1:
        text = (
            "Shards, activation checkpoints and offload were not searched, because sharding is"
            f" {settings.sharding!r}: pass sharding='auto' to search them."
        )
        yield Note(NOT_SEARCHED, text, "sharding")
    if cluster.ranks_per_host > 1 and tensor_degree == 1:
        text = (
            "Splits of layers over ranks were not searched, because a job makes their process"
            " groups before it searches: sagemaker-dist plan searches them, and"
            " ModelParallel(plan='plan.json') runs the plan that it saves."
        )
        yield Note(NOT_SEARCHED, text, "tensor_parallel_degree")
