# SPDX-License-Identifier: Apache-2.0
"""Ranks that are about to run different steps raise the same error, with their places."""

import pytest

from sagemaker_dist.errors import OptionError

BATCH, FEW, MANY = 8, 16, 24


def uneven(_rank, _size, case):
    """Train with other data on rank 1 than on rank 0; return what fit() raises."""
    import keras
    import tensorflow as tf
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 1, "microbatches": 2})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"))
    is_short = smp.dp_rank() == 1
    x, y = MODELS["residual"][1](MANY)
    mine = slice(FEW if is_short else MANY)
    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}
    try:
        if case == "arrays":
            model.fit(x[mine], y[mine], **options)
        elif case == "generator":
            pieces = range(0, FEW if is_short else MANY, BATCH)
            data = tf.data.Dataset.from_generator(
                lambda: ((x[at : at + BATCH], y[at : at + BATCH]) for at in pieces),
                output_signature=(tf.TensorSpec([BATCH, 8]), tf.TensorSpec([BATCH, 2])),
            )
            model.fit(data, epochs=2, verbose=0)
        elif case == "validation":
            model.fit(x, y, validation_data=(x[mine], y[mine]), **options)
        elif case == "stop":

            class Stop(keras.callbacks.Callback):
                def on_epoch_end(self, epoch, logs=None):
                    self.model.stop_training = is_short

            model.fit(x, y, callbacks=[Stop()], **options)
        elif case == "steps":
            model.fit(x[mine], y[mine], steps_per_epoch=2, **{**options, "epochs": 1})
    except OptionError as error:
        return error.about, error.kind, error.why
    return None


EXPECTED = {
    "arrays": ("rank 0 has batch 3 of epoch 1 of fit()", "rank 1 has batch 1 of epoch 2 of fit()"),
    "generator": (
        "rank 0 has batch 3 of epoch 1 of fit()",
        "rank 1 has no batch after 2 of epoch 1 of fit()",
    ),
    "validation": ("rank 0 has batch 3 of epoch 1 of evaluate()", "rank 1 has ended evaluate()"),
    "stop": ("rank 0 has batch 1 of epoch 2 of fit()", "rank 1 has ended fit()"),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_ranks_with_other_batches_raise_the_same_error(keras_world, case):
    """Arrays, data of unknown length, validation data, and a callback that ends one rank."""
    first, second = keras_world.run(uneven, case, size=2, deadline=60)
    about, kind, why = first

    assert first == second
    assert (("data",), "difference") == (about, kind)
    assert all(part in why for part in EXPECTED[case])


def test_data_that_nobody_reads_do_not_count(keras_world):
    """With equal steps_per_epoch, ranks may have data of different lengths."""
    assert [None, None] == keras_world.run(uneven, "steps", size=2, deadline=60)


def other_shapes(rank, _size):
    """Pass rank 1 of a pipeline narrower batches after the first one; return what it raises."""
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 2})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"))
    x, y = MODELS["residual"][1](BATCH)
    model.train_on_batch(x, y)
    try:
        model.train_on_batch(x[:, :6] if rank == 1 else x, y)
    except OptionError as error:
        return error.about, error.kind, error.why
    return None


def test_stages_of_one_pipeline_need_batches_of_one_shape(keras_world):
    """The error has the shapes of both ranks."""
    first, second = keras_world.run(other_shapes, size=2, deadline=60)

    assert first == second
    assert (("data",), "difference") == first[:2]
    assert "got [8, 8]" in first[2]
    assert "and [8, 6]" in first[2]


def predicted(rank, _size, stages):
    """Predict other numbers of batches on rank 1 than on rank 0; return lengths and errors."""
    import tensorflow as tf
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": stages, "microbatches": 2})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"))
    x, y = MODELS["residual"][1](MANY)

    def batches(count, fails=False):
        for at in range(0, count, BATCH):
            yield x[at : at + BATCH]
        if fails:
            raise ValueError("the file is damaged")

    def outcome(call, *args, **options):
        try:
            found = call(*args, verbose=0, **options)
        except Exception as error:
            return getattr(error, "why", f"{type(error).__name__}: {error}")
        return len(found)

    def dataset(*args):
        spec = tf.TensorSpec([BATCH, 8])
        return tf.data.Dataset.from_generator(lambda: batches(*args), output_signature=spec)

    few, fails = (FEW, True) if rank else (MANY, False)
    none = dataset(0) if rank else dataset(MANY)
    return [
        outcome(model.predict, none),  # the model is not split yet
        outcome(model.predict, x[:few], batch_size=BATCH),
        outcome(model.predict, dataset(few, fails)),
        outcome(model.evaluate, x[:few], y[:few], batch_size=BATCH, return_dict=True),
        outcome(model.predict, x[:FEW], batch_size=BATCH),
    ]


def test_stages_predict_as_many_batches(keras_world):
    """Otherwise both ranks raise the same error, or that of reading; and then go on."""
    first, second = keras_world.run(predicted, 2, size=2, deadline=60)

    assert "rank 0 has batch 1 of predict()" in first[0]
    assert "rank 1 has failed in predict()" in first[0]
    assert "rank 0 has batch 3 of predict(), rank 1 has ended predict()" in first[1]
    assert "rank 1 has failed in predict(): InvalidArgumentError" in first[2]
    assert "the file is damaged" in first[2]
    assert "rank 0 has batch 3 of epoch 1 of evaluate()" in first[3]
    assert first[:4] == second[:4]
    assert FEW == first[4] == second[4]


def test_replicas_predict_their_own_numbers_of_batches(keras_world):
    """Only the first batch needs all ranks, and evaluate() all batches."""
    first, second = keras_world.run(predicted, 1, size=2, deadline=60)

    assert "rank 1 has failed in predict()" in first[0]
    assert (MANY, FEW) == (first[1], second[1])
    assert MANY == first[2]
    assert "the file is damaged" in second[2]
    assert "rank 0 has batch 3 of epoch 1 of evaluate()" in first[3]
    assert (first[0], first[3], FEW) == (second[0], second[3], second[4])


def broken_data(rank, _size):
    """Train with data whose reading fails on rank 1; return this rank's error and its fault."""
    import tensorflow as tf
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp
    from smdist.dataparallel.rendezvous.engine_shutdown import last_fault

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 2})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"))
    x, y = MODELS["residual"][1](BATCH)

    def batches():
        yield x, y
        if rank == 1:
            raise ValueError("the file is damaged")
        yield x, y

    specs = (tf.TensorSpec([BATCH, 8]), tf.TensorSpec([BATCH, 2]))
    try:
        model.fit(tf.data.Dataset.from_generator(batches, output_signature=specs), verbose=0)
    except tf.errors.OpError as error:
        fault = last_fault()
        return type(error).__name__, fault and (fault.kind, fault.culprit, fault.text)
    return None


def test_an_error_in_the_data_of_one_rank_reaches_the_others(keras_world):
    """The other rank's error has the rank and the reason, at once and not at the timeout."""
    (error, fault), (other, _) = keras_world.run(broken_data, size=2, deadline=25)
    kind, culprit, text = fault

    assert ("AbortedError", "aborted", 1) == (error, kind, culprit)
    assert "the file is damaged" in text
    assert other == "InvalidArgumentError"
