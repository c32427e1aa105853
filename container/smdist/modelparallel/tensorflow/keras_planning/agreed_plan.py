# SPDX-License-Identifier: Apache-2.0
"""Plan of a model that all ranks agree on: rank 0 makes it, or all ranks load it from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous.host_identity import host_identity
from smdist.dataparallel.tensorflow import collectives
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object, broadcast_object
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.default_links import PROCESSES
from smdist.modelparallel.core.plan import Fingerprint, Plan
from smdist.modelparallel.tensorflow.keras_capture import capture, graph_of
from smdist.modelparallel.tensorflow.keras_planning.cost_source import CostsOf
from smdist.modelparallel.tensorflow.keras_planning.keras_plan import PlanInput, plan_for
from smdist.modelparallel.tensorflow.keras_session import KerasSession
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch

_WORKING: Final = 1
_DONE: Final = 0


def agreed_plan(
    model: Any, batch: PipelineBatch, session: KerasSession, costs_of: CostsOf,
    marks: Mapping[str, int], *, run: Any = None, state: StateBytes | None = None,
) -> Plan:  # fmt: skip
    """Return the plan of a model; all ranks must call this.

    Args:
        model: The model.
        batch: First batch, whose shapes the plan is for.
        session: Session with options and ranks.
        costs_of: Function that measures or estimates a program.
        marks: Stage of each layer that the script marked, by its path.
        run: Function that is called in place of the model while it is recorded.
        state: Bytes for each parameter element. Default: those of Adam in float32.

    Raises:
        OptionError: No plan is possible, or models differ between ranks; raised on every rank.
    """
    options = session.options
    cluster = _cluster(session)
    found: tuple[Any, OptionError | None] = (None, None)

    def at(num_microbatches: int, opened: frozenset[str]) -> Any:
        example = batch.split(num_microbatches)[0].microbatch_example
        program = capture(model, example, training=True, opened=opened, run=run)
        return graph_of(program, model), costs_of(program, _still_working)

    if session.rank == 0:
        try:
            if options.plan is not None:
                plan = Plan.load(options.plan)
            else:
                given = PlanInput(
                    at=at, batch_size=batch.size, marks=marks, state=state or StateBytes()
                )
                plan = plan_for(given, options, cluster)
            found = (plan.document(), None)
        except OptionError as error:
            found = (None, error)
        except Exception as error:  # any error, since other ranks wait for rank 0
            collectives.broadcast(tf.constant([_DONE]), 0)
            broadcast_object((None, _translated(error)))
            raise
        collectives.broadcast(tf.constant([_DONE]), 0)
    else:
        while int(collectives.broadcast(tf.constant([_DONE]), 0)[0]) != _DONE:
            pass
    document, fault = broadcast_object(found)
    if fault is not None:
        raise fault
    plan = Plan.from_document(document)
    _check_models(model, batch, plan, run, from_file=options.plan is not None)
    return plan


def _still_working() -> None:
    """Tell the other ranks that rank 0 still measures, so that their wait has no timeout."""
    collectives.broadcast(tf.constant([_WORKING]), 0)


def _translated(error: Exception) -> OptionError:
    return OptionError(
        "rank 0 could not plan the model",
        f"{type(error).__name__}: {error}",
        "The error on rank 0 has the cause",
        kind="failed",
    )


def _check_models(
    model: Any, batch: PipelineBatch, plan: Plan, run: Any, *, from_file: bool
) -> None:
    """Check that all ranks have the model of the plan; all ranks must call this.

    Args:
        model: Model of this rank.
        batch: First batch.
        plan: Plan that all ranks have.
        run: Function that is called in place of the model while it is recorded.
        from_file: True if the plan is a file's, False if rank 0 has made it for its model.
    """
    example = batch.split(plan.num_microbatches)[0].microbatch_example
    fault: OptionError | None = None
    print_: Any = None
    try:
        program = capture(model, example, training=True, opened=frozenset(plan.opened), run=run)
        graph = graph_of(program, model)
        print_ = Fingerprint.of(graph)
        plan.check(graph)
    except OptionError as error:
        fault = error
    every = allgather_object((print_, fault))
    if fault is not None and from_file:
        raise fault
    for rank, (other, reason) in enumerate(every):
        if reason is not None:
            raise reason if from_file or other is None else _differs(rank, reason)
    for rank, (other, _) in enumerate(every):
        if other != print_:
            raise OptionError(
                f"the model of rank {rank} differs from this rank's",
                _difference(print_, other),
                "Make the same model on every rank",
                about="model",
                kind="difference",
            )


def _differs(rank: int, reason: OptionError) -> OptionError:
    faults = reason.faults if isinstance(reason, OptionErrors) else (reason,)
    return OptionError(
        f"the model of rank {rank} differs from rank 0's",
        "compared with the plan of rank 0, " + "; ".join(each.why for each in faults),
        "Make the same model on every rank",
        about="model",
        kind="difference",
    )


def _difference(mine: Fingerprint, other: Fingerprint) -> str:
    for name in [*mine.units, *other.units]:
        if mine.units.get(name) != other.units.get(name):
            return f"layer {name!r} is not the same there"
    return "inputs of layers have other shapes there"


def _cluster(session: KerasSession) -> Cluster:
    hosts = Counter(allgather_object(host_identity(read_rank_config())))
    if len(set(hosts.values())) != 1:
        return Cluster(ranks_per_host=session.size, inside=PROCESSES, across=PROCESSES)
    return Cluster(
        num_hosts=len(hosts), ranks_per_host=session.size // len(hosts), inside=PROCESSES,
        across=PROCESSES,
    )  # fmt: skip
