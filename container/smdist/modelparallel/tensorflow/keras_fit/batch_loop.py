# SPDX-License-Identifier: Apache-2.0
"""Functions that Keras's fit, evaluate and predict call for batches, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from smdist.modelparallel.tensorflow.keras_capture import automatic_names_kept
from smdist.modelparallel.tensorflow.keras_fit.model_trainer import ModelTrainer
from smdist.modelparallel.tensorflow.keras_fit.rank_errors import others_aborted
from smdist.modelparallel.tensorflow.keras_fit.step_agreement import PREDICT, TRAIN, StepAgreement
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch

# trainer_for(batch): trainer of the model, which is split at its first batch
TrainerFor = Callable[[PipelineBatch], ModelTrainer]


def over_iterator(
    call: str, agreement: StepAgreement, trainer_for: TrainerFor, steps: Callable[[], int]
) -> Callable[[Any], Any]:
    """Return a function that trains or evaluates batches of an iterator, and returns their logs.

    Args:
        call: TRAIN or TEST.
        agreement: Places of the ranks.
        trainer_for: Function that returns the trainer.
        steps: Function that returns the number of batches of one call of the result.
    """

    def run(iterator: Any) -> Any:
        batches, trainer = iter(iterator), None
        for _ in range(steps()):
            with others_aborted():
                batch = _next_batch(batches)
            batch = agreement.agreed(call, batch)
            if batch is None:
                break
            with others_aborted(), automatic_names_kept():
                trainer = trainer_for(batch)
                (trainer.train if call == TRAIN else trainer.test)(batch)
        if trainer is None:
            raise StopIteration
        with others_aborted(), automatic_names_kept():
            return trainer.logs(training=call == TRAIN)

    return run


def over_list(agreement: StepAgreement, trainer_for: TrainerFor) -> Callable[[list[Any]], Any]:
    """Return a function that predicts a list of batches.

    Args:
        agreement: Places of the ranks.
        trainer_for: Function that returns the trainer.
    """

    def predicted(data: Any) -> Any:
        with others_aborted():
            batch = PipelineBatch.of(keras.utils.unpack_x_y_sample_weight(data)[0])
        agreement.agreed(PREDICT, batch)
        with others_aborted(), automatic_names_kept():
            return trainer_for(batch).predict(batch)

    def run(data: list[Any]) -> Any:
        found = [predicted(each) for each in data]
        return keras.tree.map_structure(lambda *each: tf.concat(each, axis=0), *found)

    return run


def _next_batch(batches: Iterator[Any]) -> PipelineBatch | None:
    try:
        return PipelineBatch.of(*keras.utils.unpack_x_y_sample_weight(next(batches)))
    except (StopIteration, tf.errors.OutOfRangeError):
        return None
