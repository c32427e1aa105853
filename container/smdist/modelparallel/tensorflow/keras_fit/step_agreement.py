# SPDX-License-Identifier: Apache-2.0
"""Agreement of all ranks, before each step, that they are about to run the same one.

Stages wait for each other's messages. So a rank whose data end early would leave others waiting, or
its first batch of the next epoch would meet their last one of this epoch. Each rank tells the
others its place in one small sum:

    rank 0:  train, epoch 1, batch 6
    rank 1:  train, epoch 1, no batch after 5     -> the same error on both ranks

The place of a step cannot travel with the results of the step before: between them, callbacks run,
and one of them may end the training of its rank alone. In fit() and evaluate() all ranks agree,
because they share the logs of a step. In predict() the ranks of one pipeline agree, so that
replicas may have different numbers of batches.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import tensorflow as tf

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow.set_members import Members
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.tensorflow.keras_fit.rank_errors import can_exchange
from smdist.modelparallel.tensorflow.keras_session import KerasSession
from smdist.modelparallel.tensorflow.keras_stages.gradient_update import sum_of_numbers
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch

TRAIN: Final = "fit"
TEST: Final = "evaluate"
PREDICT: Final = "predict"
_CALLS: Final = (TRAIN, TEST, PREDICT)
_STATES: Final = ("batch", "no_batch", "end", "failed")
_NUMBERS: Final = 16  # more than there are pairs of a call and a state
_STEPS: Final = 2**30  # codes of places are exact in float64
_SHOWN: Final = 4  # largest number of ranks that an error describes
_HINT: Final = (
    "Give every rank as many batches of the same shapes: divide the samples into equal parts, use"
    " drop_remainder=True and dataset.take(n), or pass all ranks the same steps_per_epoch"
)

Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Place of a rank in fit(), evaluate() or predict().

    Attributes:
        call: "fit", "evaluate" or "predict".
        epoch: Epoch, from 0.
        step: Number of batches of this epoch before this one.
        state: "batch", "no_batch" after the last one, "end" of the call, or "failed".
        shapes: Shape and dtype of each tensor of the batch.
        error: Text of the error in the state "failed".
    """

    call: str
    epoch: int
    step: int
    state: str
    shapes: Shapes = ()
    error: str = ""

    @property
    def code(self) -> int:
        """Number that is equal for equal places, whatever the shapes."""
        number = _CALLS.index(self.call) * len(_STATES) + _STATES.index(self.state)
        return 1 + number + _NUMBERS * (self.step + _STEPS * self.epoch)

    @property
    def digest(self) -> int:
        """Checksum of the shapes."""
        return zlib.crc32(json.dumps(self.shapes).encode())

    def __str__(self) -> str:
        if self.state == "end":
            return f"has ended {self.call}()"
        if self.state == "failed":
            return f"has failed in {self.call}(): {self.error}"
        epoch = "" if self.call == PREDICT else f"epoch {self.epoch + 1} of "
        where = f"of {epoch}{self.call}()"
        if self.state == "no_batch":
            return f"has no batch after {self.step} {where}"
        return f"has batch {self.step + 1} {where}"


@dataclass(slots=True)
class StepAgreement:
    """Places of this rank, one after another; all ranks call each method together.

    Attributes:
        session: Session with the ranks.
        is_ready: True once the model can run a batch without the other replicas.
    """

    session: KerasSession
    is_ready: bool = False
    _epoch: int = 0
    _steps: Counter[str] = field(default_factory=Counter)
    _has_differed: bool = False

    def begin(self, call: str, epoch: int | None = None) -> None:
        """Count the batches of an epoch from 0; exchanges nothing.

        Args:
            call: TRAIN, TEST or PREDICT.
            epoch: Number of the epoch, from 0. Default: the current one.
        """
        self._steps[call] = 0
        self._has_differed = False
        self._epoch = self._epoch if epoch is None else epoch

    def end(self, call: str) -> None:
        """Check that all ranks end fit(), evaluate() or predict() together.

        Raises:
            OptionError: Others have more batches; raised on every rank.
        """
        self._check(StepPlace(call, self._place(call), 0, "end"))

    @contextmanager
    def prediction(self) -> Iterator[None]:
        """Check that the ranks of a pipeline have as many batches in the `with` block.

        Keras reads the batches of predict() by itself. So a rank where this fails tells the others.

        Raises:
            OptionError: Others have more batches, or reading fails on one of them; raised on every
                rank of the pipeline.
        """
        self.begin(PREDICT)
        try:
            yield
        except Exception as error:
            if can_exchange() and not self._has_differed:
                text = f"{type(error).__name__}: {error}"
                self._check(StepPlace(PREDICT, 0, 0, "failed", error=text))
            raise
        self.end(PREDICT)

    def agreed(self, call: str, batch: PipelineBatch | None) -> PipelineBatch | None:
        """Return this rank's next batch, once it is known that every rank has one.

        Args:
            call: TRAIN, TEST or PREDICT.
            batch: Next batch; None if there is none, on all ranks or on none.

        Raises:
            OptionError: Some ranks have a batch and others have none or are elsewhere, or batches
                differ in shape within a pipeline; raised on every rank.
        """
        step = self._steps[call]
        if batch is None:
            self._check(StepPlace(call, self._place(call), step, "no_batch"))
            return None
        self._steps[call] += 1
        self._check(StepPlace(call, self._place(call), step, "batch", shapes_of(batch)))
        return batch

    def _place(self, call: str) -> int:
        """Return the epoch, which predict() has none of."""
        return 0 if call == PREDICT else self._epoch

    def _check(self, mine: StepPlace) -> None:
        members = self._members(mine.call)
        if members.size == 1:
            return
        sent = np.zeros([2, members.size])
        sent[:, members.rank] = mine.code, mine.digest
        codes, digests = sum_of_numbers(tf.constant(sent), members).numpy()
        digest_of = dict(zip(members.ranks, digests, strict=True))
        pipelines = self._pipelines(members)
        if len(set(codes)) == 1 and all(
            len({digest_of[rank] for rank in each}) == 1 for each in pipelines
        ):
            return
        self._has_differed = True
        raise difference(_gathered(mine, members), pipelines)

    def _members(self, call: str) -> Members:
        """Return the ranks that have to be at the same place in a call."""
        if call == PREDICT and self.is_ready:
            return self.session.pipeline_ranks
        every = tuple(range(self.session.size))
        return Members(group=0, ranks=every, rank=self.session.rank)

    def _pipelines(self, members: Members) -> list[Sequence[int]]:
        """Return the ranks of each pipeline; none while the planner has not chosen its length."""
        if not self.session.is_decided:
            return []
        pipelines = self.session.layout.all_members(Axis.PP)
        return [each for each in pipelines if each[0] in members.ranks]


def _gathered(mine: StepPlace, members: Members) -> dict[int, StepPlace]:
    """Return the place of each rank; each writes its own into one sum of bytes."""
    packed = np.frombuffer(pickle.dumps(mine), np.uint8)
    lengths = np.zeros([members.size])
    lengths[members.rank] = packed.size
    lengths = sum_of_numbers(tf.constant(lengths), members).numpy().astype(int)
    sent = np.zeros([members.size, max(lengths)])
    sent[members.rank, : packed.size] = packed
    every = sum_of_numbers(tf.constant(sent), members).numpy().astype(np.uint8)
    return {
        rank: pickle.loads(row[:size].tobytes())  # noqa: S301  of another rank of the same job
        for rank, row, size in zip(members.ranks, every, lengths, strict=True)
    }


def shapes_of(batch: PipelineBatch) -> Shapes:
    """Return shape and dtype of each tensor of a batch."""
    return tuple((tuple(each.shape), each.dtype.name) for each in batch.leaves)


def difference(places: Mapping[int, StepPlace], pipelines: Sequence[Sequence[int]]) -> OptionError:
    """Return the error about ranks that are at different places.

    Args:
        places: Place of each rank that had to agree.
        pipelines: Ranks of each pipeline, whose batches need the same shapes.
    """
    first: dict[int, int] = {}  # lowest rank at each place
    for rank, place in places.items():
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
