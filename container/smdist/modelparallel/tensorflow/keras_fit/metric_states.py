# SPDX-License-Identifier: Apache-2.0
"""States of metrics, joined over replicas, so that a result is the one of all samples together.

Precision keeps counts, AUC a histogram, MeanIoU a matrix: their sums over replicas give the result
of one process, and the average of the replicas' results does not. Keras's own distribution over
devices joins them in the same way, by the `aggregation` of each variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from sagemaker_dist.errors import OptionError, raise_all
from smdist.dataparallel.tensorflow.set_members import Members
from smdist.modelparallel.tensorflow.keras_stages.gradient_update import sum_of_numbers


@contextmanager
def joined_states(metrics: Sequence[Any], replicas: Members | None) -> Iterator[None]:
    """Give metrics the states of all replicas in the `with` block, and then their own again.

    The ranks of all replicas that have these metrics must call this.

    Args:
        metrics: Metrics that are equal on these ranks.
        replicas: Ranks of the same stage; None for one replica.

    Raises:
        OptionError: A state cannot be joined, because it has the aggregation "none".
    """
    variables = [each for metric in metrics for each in metric.variables]
    if replicas is None or not variables:
        yield
        return
    raise_all(_faults(metrics))
    own = [each.numpy() for each in variables]
    sent = [
        np.ravel(value).astype(np.float64) * _share(each.aggregation, replicas)
        for each, value in zip(variables, own, strict=True)
    ]
    flat = sum_of_numbers(tf.constant(np.concatenate(sent)), replicas).numpy()
    ends = np.cumsum([value.size for value in own])
    for variable, value, part in zip(variables, own, np.split(flat, ends[:-1]), strict=True):
        variable.assign(part.reshape(value.shape).astype(value.dtype))
    try:
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def _share(aggregation: str, replicas: Members) -> float:
    """Return the factor of this replica's state in the joined one."""
    if aggregation == "only_first_replica":
        return float(replicas.rank == 0)
    return 1.0 / len(replicas.ranks) if aggregation == "mean" else 1.0


def _faults(metrics: Sequence[Any]) -> Iterator[OptionError]:
    for metric in metrics:
        for each in metric.variables:
            if each.aggregation == "none":
                yield OptionError(
                    f"the state {each.path!r} of a metric has the aggregation 'none'",
                    "replicas count different samples, and it does not say how to join them",
                    'Create it with add_variable(..., aggregation="sum")',
                    about="metrics",
                    kind="unsupported",
                )
