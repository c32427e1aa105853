# SPDX-License-Identifier: Apache-2.0
"""Options that the search of a job leaves as they are given, and notes that say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.note import NOT_SEARCHED, Note
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.parallel.settings import Settings

_AUTO = "auto"


def searches_splits(settings: Settings) -> bool:
    """Return True if the search of this job may split layers over ranks.

    Process groups of split layers cannot be added to other groups, so that there must be none yet.

    Args:
        settings: Settings of the parallel model.
    """
    if settings.sharding != _AUTO or settings.plan is not None or settings.groups is not None:
        return False
    return settings.options.plan is None and not session.current().is_decided


def not_searched(
    settings: Settings, cluster: Cluster, tensor_degree: int, whole: str
) -> Iterator[Note]:
    """Yield a note for each option that the search of this job left as it was given.

    Nothing is yielded if the user has fixed the layout.

    Args:
        settings: Settings of the parallel model.
        cluster: Cluster of the search, in which ranks that share tensors are one device.
        tensor_degree: Number of ranks over which tensors are split before the search.
        whole: Reason why the search split no layers although it could; "" if there is none.
    """
    searches_shards = settings.sharding == _AUTO
    if settings.options.pipeline_parallel_degree != _AUTO and not searches_shards:
        return
    if not searches_shards and cluster.size > 1:
        text = (
            "Shards, activation checkpoints and offload were not searched, because sharding is"
            f" {settings.sharding!r}: {_to_search_shards(settings)}."
        )
        yield Note(NOT_SEARCHED, text, "sharding")
    if cluster.ranks_per_host == 1 or tensor_degree > 1:
        return
    nevertheless = f"{whole}: tensor_parallel_degree splits them nevertheless" if whole else ""
    if why := nevertheless if searches_splits(settings) else _why_no_splits(settings):
        text = f"Splits of layers over ranks were not searched, because {why}."
        yield Note(NOT_SEARCHED, text, "tensor_parallel_degree")


def _to_search_shards(settings: Settings) -> str:
    """Return what to pass so that shards are searched."""
    try:
        replace(settings.options, sharding=_AUTO)
    except OptionError as error:
        faults = getattr(error, "faults", (error,))
        names = ", ".join(dict.fromkeys(str(each.about[0]) for each in faults if each.about))
        return f"pass sharding='auto' without {names} to search them"
    return "pass sharding='auto' to search them"


def _why_no_splits(settings: Settings) -> str:
    """Return the reason why the search of this job may not split layers, and what would."""
    if settings.sharding != _AUTO:
        return (
            "only a search of shards splits layers: see the note on sharding, or pass"
            " tensor_parallel_degree"
        )
    return (
        "the process groups exist already: leave pipeline_parallel_degree at 'auto' to search them,"
        " or pass ModelParallel(plan='plan.json') with a plan of sagemaker-dist plan"
    )
