# SPDX-License-Identifier: Apache-2.0
"""Function run() and the methods of states under Horovod's names, for every framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from sagemaker_dist.errors import OptionError
from smdist.elastic.elastic_sampler import ElasticSampler
from smdist.elastic.run import run as run_elastic
from smdist.elastic.state import Change, State

R = TypeVar("R")


class HorovodMethods(State):
    """Methods that Horovod's states have beside commit(), restore() and sync()."""

    def save(self) -> None:
        """Keep a copy of the state in this process, as commit() does."""
        self.commit()

    def sync(self) -> None:
        """Send rank 0's present state to all ranks, and commit it. All ranks must call it together.

        As in Horovod, changes since the last commit are sent, too. Horovod sends model, optimizer,
        scheduler and sampler as they are, and other values as of rank 0's last commit; here these
        values are the present ones, so that `step` fits the model.
        """
        self.commit()
        super().sync()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these functions, without arguments, after each change of the number of ranks."""
        for callback in callbacks:
            self.on_reset(_without_arguments(callback))

    def check_host_updates(self) -> None:
        """Return at once: hosts are never added, and a lost one ends collectives by an error."""


class HorovodElasticSampler(ElasticSampler):
    """ElasticSampler with the methods of Horovod's.

    Args:
        dataset: The dataset, or its length.
        shuffle: False takes the samples in their own order. Default True.
        seed: Seed of the permutations, the same on all ranks. Default 0.

    Raises:
        OptionError: The dataset is empty.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        super().__init__(dataset, shuffle=shuffle, seed=seed)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Take note that each rank has processed a batch of `batch_size` more samples.

        Args:
            batch_idx: Number of the batch since the sampler was iterated; batches come in order.
            batch_size: Number of samples of this rank's batch.
        """
        del batch_idx  # the samples of a rank are processed in the order of the sampler
        self.record(batch_size)


def run(train: Callable[..., R]) -> Callable[..., R]:
    """Decorate a function train(state, ...) so that it is called again after each loss of a host.

    It is smdist.elastic.run() in Horovod's form. As in Horovod, the learning rate stays as it is
    after a change of the number of ranks; state.register_reset_callbacks() may change it.

    Raises:
        ElasticError: In the decorated function: training cannot go on, for example because fewer
            than elastic_min hosts are left.
        OptionError: In the decorated function: init() was not called.
    """

    @wraps(train)
    def started(state: State, *args: Any, **named: Any) -> R:
        return run_elastic(lambda current: train(current, *args, **named), state, on_reset=_stay)

    return started


def sampler_among(values: dict[str, Any]) -> tuple[ElasticSampler | None, dict[str, Any]]:
    """Return the sampler among the values of a state, and the values without it.

    Args:
        values: Named arguments of the state.

    Raises:
        OptionError: There are several samplers.
    """
    samplers = {name: each for name, each in values.items() if isinstance(each, ElasticSampler)}
    if len(samplers) > 1:
        raise OptionError(
            f"the state has the samplers {', '.join(samplers)}",
            "a state keeps the position in one dataset",
            "Pass one ElasticSampler, that of the training data",
            about=list(samplers)[1],
            kind="conflict",
        )
    rest = {name: each for name, each in values.items() if name not in samplers}
    return next(iter(samplers.values()), None), rest


def _stay(_state: State, _change: Change) -> None:
    """Leave the learning rate as it is, as Horovod does."""


def _without_arguments(callback: Callable[[], Any]) -> Callable[[Any, Change], None]:
    def called(_state: Any, _change: Change) -> None:
        callback()

    return called
