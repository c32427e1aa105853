# SPDX-License-Identifier: Apache-2.0
"""Function run(), the loop around an elastic training."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from smdist.config import RankConfig, read_rank_config, renumber_rank
from smdist.dataparallel.rendezvous.engine_shutdown import forget_stopped_engines, last_fault
from smdist.elastic.agent_client import AgentClient, ElasticStore, Generation
from smdist.elastic.elastic_error import ElasticError
from smdist.elastic.framework_world import FrameworkWorld
from smdist.elastic.state import Callback, State, scale_linearly

S = TypeVar("S", bound=State)
R = TypeVar("R")

_LOSSES: Final = ("lost", "left")
_RAISED: Final = "raised"  # kind of an exception that smdist itself has not raised
_MAX_TEXT: Final = 500  # characters of an error in the log


def run(train: Callable[[S], R], state: S, *, on_reset: Callback = scale_linearly) -> R:
    """Call `train(state)` and return its result; call it again after each loss of a host.

    All ranks call it after they have connected: after `init_process_group("smdist")` in torch, or
    `init()` in TensorFlow. First it sends rank 0's state to all ranks, and commits it. When a host
    is lost, `train` ends by an exception on each rank that is left. These ranks connect anew, with
    new numbers, restore the last commit of the lowest of them, run the callbacks of the change, and
    call `train(state)` again. `train` must therefore begin where the state is, and make everything
    that belongs to one world itself: DistributedDataParallel, data loaders, tf.functions.

    Without the option elastic_min of the job, a loss ends the job as ever.

    Args:
        train: Function of the training.
        state: A `TorchState` or a `KerasState`.
        on_reset: Function called as `on_reset(state, change)` after a change of the number of
            ranks, if the state has no callbacks of its own. Default `scale_linearly`.

    Raises:
        ElasticError: Training cannot go on, for example because fewer than elastic_min hosts are
            left.
        OptionError: The ranks are not connected.
    """
    config = read_rank_config()
    world = state.world()
    generation = _first_generation(world, config)
    if config.elastic_socket is None:
        state.enter_world(generation, on_reset)
        return train(state)
    state.check_callbacks(on_reset)
    agent = AgentClient(config.elastic_socket, generation.local_rank)
    try:
        return _run_elastic(train, state, agent, generation, on_reset)
    finally:
        agent.close()


def _run_elastic(
    train: Callable[[S], R],
    state: S,
    agent: AgentClient,
    generation: Generation,
    on_reset: Callback,
) -> R:
    has_entered = False
    while True:
        try:
            if not has_entered:
                state.enter_world(generation, on_reset)
            return train(state)
        except Exception as error:
            culprit = _lost_rank(generation)
            if culprit is None:
                raise
            _report(generation, error)
        # here, where no exception refers to the model's wrapper any more, whose hooks end with it
        gc.collect()
        generation = _re_form(state, agent, generation, culprit, on_reset)
        has_entered = True


def _re_form(
    state: State,
    agent: AgentClient,
    generation: Generation,
    culprit: int | None,
    on_reset: Callback,
) -> Generation:
    """Connect the ranks that are left, restore the state in them, and return their generation.

    If a further host is lost meanwhile, begin again.

    Args:
        state: State of the training.
        agent: Connection to this host's launcher.
        generation: The generation that has ended.
        culprit: The rank of it that was lost; None if unknown.
        on_reset: Default callback of a change.

    Raises:
        ElasticError: Training cannot go on.
        Exception: The ranks could not connect, although no host was lost.
    """
    world = state.world()
    failed: tuple[tuple[str, ...], Exception] | None = None
    while True:
        world.leave()
        forget_stopped_engines()
        generation = agent.next_generation(generation.number, culprit)
        if failed is not None and failed[0] == generation.hosts:
            raise failed[1]
        try:
            renumber_rank(generation.rank, generation.size)
            world.enter(generation, ElasticStore(agent, generation))
            state.enter_world(generation, on_reset)
        except ElasticError:
            raise
        except Exception as error:  # any error may come from a host that was lost meanwhile
            _report(generation, error)
            failed = generation.hosts, error
            traceback.clear_frames(error.__traceback__)  # lets go of what belongs to this world
            culprit = None
            continue
        if generation.rank == 0:
            hosts = ", ".join(generation.hosts)
            sys.stderr.write(
                f"smdist: generation {generation.number} trains on with {generation.size} ranks, on"
                f" {hosts}\n"
            )
        return generation


def _first_generation(world: FrameworkWorld, config: RankConfig) -> Generation:
    return Generation(
        number=0,
        session="",
        size=world.size(),
        rank=world.rank(),
        local_rank=config.local_rank or 0,
        local_size=config.local_size or 1,
        hosts=(),
        lost=(),
    )


def _lost_rank(generation: Generation) -> int | None:
    """Return the rank whose loss has ended this generation; None if it has another reason.

    A rank counts as lost if its process has ended or cannot be reached, if it has left while
    others needed it, or if an exception of the script or of a driver has ended it. An error of
    smdist, such as a wrong option, ends the job: it would be raised again.
    """
    fault = last_fault()
    if fault is None or fault.culprit == generation.rank:
        return None
    is_raised = fault.kind == "aborted" and _kind_of(fault.details) == _RAISED
    return fault.culprit if fault.kind in _LOSSES or is_raised else None


def _kind_of(details: str) -> str:
    try:
        content = json.loads(details)
    except ValueError:
        return ""
    return str(content.get("kind", "")) if isinstance(content, dict) else ""


def _report(generation: Generation, error: Exception) -> None:
    if generation.local_rank == 0:
        fault = last_fault()  # with a short text: a framework puts its stack before it
        text = " ".join((fault.text if fault else str(error)).split())[:_MAX_TEXT]
        sys.stderr.write(f"smdist: generation {generation.number} has ended: {text}\n")
