# SPDX-License-Identifier: Apache-2.0
"""Plan of a Keras model for a cluster, without ranks: `smp.plan`, and `sagemaker-dist plan`."""

from __future__ import annotations

from typing import Any

from sagemaker_dist.contract.keras_limits import keras_faults
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Costs, StateBytes
from smdist.modelparallel.core.default_links import PROCESSES
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.picture.drawable_plan import Plan
from smdist.modelparallel.tensorflow.keras_api.layer_stages import marks_of
from smdist.modelparallel.tensorflow.keras_api.model_checks import check_model
from smdist.modelparallel.tensorflow.keras_capture import capture, graph_of
from smdist.modelparallel.tensorflow.keras_planning.cost_source import costs_by
from smdist.modelparallel.tensorflow.keras_planning.keras_plan import PlanInput, plan_for
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch


def plan(
    model: Any, example: Any, world: int | Cluster, options: ModelParallel | None = None, *,
    costs: str = "auto", state: StateBytes | None = None, data_parallel_degree: int | None = None,
) -> Plan:  # fmt: skip
    """Find the plan with which a Keras model trains fastest on a number of ranks or on a cluster.

    Args:
        model: Functional, sequential or subclassed model, with or without values.
        example: Inputs of the model for the batch of one replica; axis 0 is samples. The values do
            not matter.
        world: Number of ranks on one host, or a Cluster.
        options: Options of smp.init. Default: the planner chooses all.
        costs: "measure" to run each kind of layer once, "estimate" to compute costs from shapes, or
            "auto", which measures.
        state: Bytes in memory per element of a trained parameter. Default: Adam in float32, 16.
        data_parallel_degree: Number of replicas. Default: the planner chooses.

    Returns:
        The plan, with a forecast of its step time and memory.

    Raises:
        OptionError: The model or an option is wrong, or no plan fits into the memory.
        KerasCaptureError: The model cannot be recorded.
    """
    chosen = ModelParallel() if options is None else options
    check_model(model)
    cluster = _cluster(world)
    costs_of = costs_by(costs, cluster.device)
    raise_all(keras_faults(chosen))
    batch = PipelineBatch.of(example)
    if not chosen.auto_partition:  # call() may have blocks of smp.partition()
        capture(model, batch.microbatch_example, training=True)

    def at(num_microbatches: int, opened: frozenset[str]) -> tuple[Graph, Costs]:
        part = batch.split(num_microbatches)[0].microbatch_example
        program = capture(model, part, training=True, opened=opened)
        return graph_of(program, model), costs_of(program, lambda: None)

    given = PlanInput(
        at=at, batch_size=batch.size, marks=marks_of(model), state=state or StateBytes(),
        data_parallel_degree=data_parallel_degree,
    )  # fmt: skip
    return plan_for(given, chosen, cluster)


def _cluster(world: object) -> Cluster:
    if isinstance(world, Cluster):
        return world
    if type(world) is not int or world < 1:
        raise OptionError(
            f"world is {world!r}",
            "it is the number of ranks, or a cluster",
            "Pass an integer of at least 1, or a Cluster",
            about="world",
        )
    return Cluster(ranks_per_host=world, inside=PROCESSES, across=PROCESSES)
