# SPDX-License-Identifier: Apache-2.0
"""Agreement of all ranks, before each step, that they are about to run the same one.

Stages wait for each other's messages. So a rank whose data end early would leave others waiting, or
its first batch of the next epoch would meet their last one of this epoch. Each rank tells the
others its place in one small sum:

    rank 0:  train, epoch 1, batch 6
    rank 1:  train, epoch 1, no batch after 5     -> the same error on both ranks
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow.broadcast_objects import allgather_object
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.tensorflow.keras_session import KerasSession
from smdist.modelparallel.tensorflow.keras_stages.gradient_update import sum_of_world
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch

TRAIN: Final = "fit"
TEST: Final = "evaluate"
_CALLS: Final = (TRAIN, TEST)
_STEPS: Final = 2**30  # codes of places are exact in float64
_SHOWN: Final = 4  # largest number of ranks that an error describes
_HINT: Final = (
    "Give every rank as many batches of the same shapes: divide the samples into equal parts, use"
    " drop_remainder=True and dataset.take(n), or pass all ranks the same steps_per_epoch"
)

Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Place of a rank in fit() or evaluate().

    Attributes:
        call: "fit" or "evaluate".
        epoch: Epoch, from 0.
        step: Number of batches of this epoch before this one.
        state: "batch", "no_batch" after the last one, or "end" of the call.
        shapes: Shape and dtype of each tensor of the batch.
    """

    call: str
    epoch: int
    step: int
    state: str
    shapes: Shapes = ()

    @property
    def code(self) -> int:
        """Number that is equal for equal places, whatever the shapes."""
        number = _CALLS.index(self.call) * 3 + ("batch", "no_batch", "end").index(self.state)
        return 1 + number + 8 * (self.step + _STEPS * self.epoch)

    @property
    def digest(self) -> int:
        """Checksum of the shapes."""
        return zlib.crc32(json.dumps(self.shapes).encode())

    def __str__(self) -> str:
        if self.state == "end":
            return f"has ended {self.call}()"
        where = f"of epoch {self.epoch + 1} of {self.call}()"
        if self.state == "no_batch":
            return f"has no batch after {self.step} {where}"
        return f"has batch {self.step + 1} {where}"


@dataclass(slots=True)
class StepAgreement:
    """Places of this rank, one after another; all ranks call each method together.

    Attributes:
        session: Session with the ranks.
    """

    session: KerasSession
    _epoch: int = 0
    _steps: Counter[str] = field(default_factory=Counter)

    def begin(self, call: str, epoch: int | None = None) -> None:
        """Count the batches of an epoch from 0; exchanges nothing.

        Args:
            call: TRAIN or TEST.
            epoch: Number of the epoch, from 0. Default: the current one.
        """
        self._steps[call] = 0
        self._epoch = self._epoch if epoch is None else epoch

    def end(self, call: str) -> None:
        """Check that all ranks end fit() or evaluate() together.

        Raises:
            OptionError: Others have more batches; raised on every rank.
        """
        self._check(StepPlace(call, self._epoch, 0, "end"))

    def agreed(self, call: str, batch: PipelineBatch | None) -> PipelineBatch | None:
        """Return this rank's next batch, once it is known that every rank has one.

        Args:
            call: TRAIN or TEST.
            batch: Next batch; None if there is none, on all ranks or on none.

        Raises:
            OptionError: Some ranks have a batch and others have none or are elsewhere, or batches
                differ in shape within a pipeline; raised on every rank.
        """
        step = self._steps[call]
        if batch is None:
            self._check(StepPlace(call, self._epoch, step, "no_batch"))
            return None
        self._steps[call] += 1
        self._check(StepPlace(call, self._epoch, step, "batch", shapes_of(batch)))
        return batch

    def _check(self, mine: StepPlace) -> None:
        size, rank = self.session.size, self.session.rank
        if size == 1:
            return
        sent = np.zeros([2, size])
        sent[:, rank] = mine.code, mine.digest
        codes, digests = sum_of_world(tf.constant(sent)).numpy()
        pipelines = self._pipelines()
        if len(set(codes)) == 1 and all(len(set(digests[each])) == 1 for each in pipelines):
            return
        raise difference(allgather_object(mine), pipelines)

    def _pipelines(self) -> list[list[int]]:
        """Return the ranks of each pipeline; none while the planner has not chosen its length."""
        if not self.session.is_decided:
            return []
        return [list(each) for each in self.session.layout.all_members(Axis.PP)]


def shapes_of(batch: PipelineBatch) -> Shapes:
    """Return shape and dtype of each tensor of a batch."""
    return tuple((tuple(each.shape), each.dtype.name) for each in batch.leaves)


def difference(places: list[StepPlace], pipelines: list[list[int]]) -> OptionError:
    """Return the error about ranks that are at different places.

    Args:
        places: Place of each rank.
        pipelines: Ranks of each pipeline, whose batches need the same shapes.
    """
    first: dict[int, int] = {}  # lowest rank at each place
    for rank, place in enumerate(places):
        first.setdefault(place.code, rank)
    if len(first) > 1:
        shown = [f"rank {rank} {places[rank]}" for rank in list(first.values())[:_SHOWN]]
        return OptionError(
            "ranks do not have the same batches",
            "a step needs a batch of every rank, and " + ", ".join(shown),
            _HINT,
            about="data",
            kind="difference",
        )
    for ranks in pipelines:
        for rank in ranks[1:]:
            mine, other = places[ranks[0]].shapes, places[rank].shapes
            if mine != other:
                return OptionError(
                    f"ranks {ranks[0]} and {rank} have batches of other shapes",
                    f"they are stages of one pipeline, and {places[rank].call}() got"
                    f" {_text(mine)} on rank {ranks[0]} and {_text(other)} on rank {rank}",
                    _HINT,
                    about="data",
                    kind="difference",
                )
    raise AssertionError("equal places of all ranks are no difference")


def _text(shapes: Shapes) -> str:
    return ", ".join(f"{list(shape)} {dtype}" for shape, dtype in shapes)
