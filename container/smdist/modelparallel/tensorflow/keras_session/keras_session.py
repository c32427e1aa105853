# SPDX-License-Identifier: Apache-2.0
"""Session that smp.init makes: options of the job, and this rank's place in the pipelines.

import smdist.modelparallel.tensorflow as smp

smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
"""

from __future__ import annotations

from dataclasses import dataclass

import keras

from sagemaker_dist.contract.keras_limits import keras_faults
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError, raise_all
from smdist.config import read_rank_config
from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.dataparallel.tensorflow.set_members import Members
from smdist.modelparallel.core.rank_layout import Axis, RankLayout
from smdist.modelparallel.core.session_agreement import RankOptions, check, check_same
from smdist.modelparallel.core.session_options import Config, chosen, with_plan
from smdist.modelparallel.tensorflow.keras_session.partition_hooks import forget_hooks

_FIRST_GROUP = 1000  # numbers of groups below are free for others


@dataclass(slots=True, kw_only=True, eq=False)
class KerasSession:
    """State of model parallelism on this rank, from smp.init to its end.

    Attributes:
        options: Options of smp.init, joined with the options of the job.
        is_ours: True if smp.init connected this rank to the others.
    """

    options: ModelParallel
    is_ours: bool
    _layout: RankLayout | None = None
    _replicas: Members | None = None
    _pipeline: Members | None = None

    @property
    def rank(self) -> int:
        """World rank of this process."""
        return basics.rank()

    @property
    def size(self) -> int:
        """Number of ranks in the world."""
        return basics.size()

    @property
    def local_rank(self) -> int:
        """Number of this rank on its host."""
        return int(basics.local_rank())

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return int(basics.local_size())

    @property
    def is_decided(self) -> bool:
        """True once the number of ranks of a pipeline is known."""
        return self._layout is not None

    @property
    def layout(self) -> RankLayout:
        """Layout of all ranks.

        Raises:
            OptionError: The planner has not chosen the pipeline degree yet.
        """
        if self._layout is None:
            raise OptionError(
                "the groups of ranks do not exist yet",
                "pipeline_parallel_degree is 'auto', and the planner chooses it in the first step",
                "Use groups after the first step, or pass smp.init a pipeline_parallel_degree",
                about="pipeline_parallel_degree",
                kind="too_early",
            )
        return self._layout

    @property
    def pp_rank(self) -> int:
        """Place of this rank in its pipeline."""
        return self.layout.coordinates(self.rank).pp

    @property
    def replica(self) -> int:
        """Number of this rank's replica."""
        return self.layout.coordinates(self.rank).rdp

    @property
    def num_replicas(self) -> int:
        """Number of replicas of the model."""
        return self.layout.reduced_data_parallel_degree

    @property
    def pipeline(self) -> tuple[int, ...]:
        """World ranks of this rank's pipeline, by their place in it."""
        return self.members(Axis.PP)

    def members(self, axis: Axis) -> tuple[int, ...]:
        """Return the world ranks of this rank's group of an axis (such as PP), in group order."""
        if axis is Axis.WORLD:
            return tuple(range(self.size))
        return self.layout.members(axis, self.rank)

    @property
    def replica_ranks(self) -> Members | None:
        """Group of the engine with the replicas of this rank's stages; None for one replica."""
        return self._replicas

    @property
    def pipeline_ranks(self) -> Members:
        """Group of the engine with the ranks of this rank's pipeline."""
        assert self._pipeline is not None  # used after the split alone
        return self._pipeline

    def decide(self, pipeline_parallel_degree: int) -> None:
        """Make the groups for a pipeline degree; all ranks must call this with the same degree."""
        layout = RankLayout(
            size=self.size,
            pipeline_parallel_degree=pipeline_parallel_degree,
            placement_strategy=self.options.placement_strategy,
        )
        if layout.reduced_data_parallel_degree > 1:
            self._replicas = self._members(layout, Axis.RDP, _FIRST_GROUP)
        self._pipeline = self._members(layout, Axis.PP, _FIRST_GROUP + self.size)
        self._layout = layout

    def _members(self, layout: RankLayout, axis: Axis, first: int) -> Members:
        """Return this rank's group of an axis, numbered from `first`; 0 if it has all ranks."""
        mine = layout.members(axis, self.rank)
        group = 0
        if 1 < len(mine) < self.size:
            group = first + layout.all_members(axis).index(mine)
            basics.engine().add_group(group, list(mine))
        return Members(group=group, ranks=tuple(mine), rank=mine.index(self.rank))


_current: list[KerasSession] = []  # at most one


def init(config: Config = None) -> KerasSession:
    """Start model parallelism; every rank calls this with the same configuration.

    Also seeds the random numbers of Python, NumPy, TensorFlow and Keras with the option `seed`, so
    that all ranks make the same model.

    Args:
        config: `ModelParallel(...)`, a dict with SMP v1's parameters, or the path of a JSON file
            with such a dict. Options of the job (`distribution=`) override this configuration.

    Returns:
        The new session; the running one if smp.init was called before.

    Raises:
        OptionError: Options are wrong, differ between ranks, or have no effect with Keras models;
            or a session with other options is running; raised on every rank.
    """
    given = read_rank_config().model_parallel
    if is_initialized():
        running = _current[0]
        if config is not None:
            check_same(running.options, with_plan(chosen(config, given))[0])
        return running
    is_ours = not basics.is_initialized()
    basics.init()
    try:
        session = KerasSession(options=_exchanged(config, given), is_ours=is_ours)
        if isinstance(session.options.pipeline_parallel_degree, int):
            session.decide(session.options.pipeline_parallel_degree)
    except BaseException:
        if is_ours:
            basics.shutdown()
        raise
    keras.utils.set_random_seed(session.options.seed % 2**32)
    _current[:] = [session]
    return session


def is_initialized() -> bool:
    """Tell whether smp.init was called, and this rank is still connected to the others."""
    return bool(_current) and basics.is_initialized()


def current_session() -> KerasSession:
    """Return the session that smp.init made.

    Raises:
        OptionError: smp.init was not called, or its session has ended.
    """
    if not is_initialized():
        raise OptionError(
            "there is no session of model parallelism",
            "smp.init() was not called, or this rank has left the others",
            "Call smp.init() first",
            kind="not_initialized",
        )
    return _current[0]


def end() -> None:
    """End the session, if there is one; disconnect this rank if smp.init connected it."""
    was = _current.copy()
    _current.clear()
    forget_hooks()
    if was and was[0].is_ours and basics.is_initialized():
        basics.shutdown()


def _exchanged(config: Config, given: ModelParallel | None) -> ModelParallel:
    """Return the options, which are equal on all ranks; all ranks must call this.

    Args:
        config: Argument of smp.init.
        given: Options of the job.
    """
    options: ModelParallel | None = None
    plan, fault = "", None
    try:
        options, plan = with_plan(chosen(config, given))
        raise_all(keras_faults(options))
        raise_all(_world_faults(options, basics.size()))
    except Exception as error:  # any error, since other ranks wait for this one
        fault = error
    own = RankOptions(options=options, plan=plan, fault=str(fault or ""))
    every = allgather_object(own)
    if fault is not None:
        raise fault
    check(every)
    assert options is not None  # None only with a fault
    return options


def _world_faults(options: ModelParallel, size: int) -> list[OptionError]:
    try:
        options.replicas(size)
    except OptionError as error:
        return [error]
    return []
