# SPDX-License-Identifier: Apache-2.0
"""broadcast_variables(): what it leaves alone, what it refuses, and which roots there are."""

import numpy as np
import pytest


def _seeds(rank, size):
    import keras

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    keras.utils.set_random_seed(rank)
    layers = [keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)]
    model = keras.Sequential(layers)
    sdp.broadcast_variables(model.variables, root_rank=np.int64(1))
    weights = [np.array(each).tolist() for each in model.weights]
    return weights, np.array(model.layers[-1].seed_generator.state).tolist()


def test_states_of_random_numbers_stay_each_ranks_own(tf_world):
    """So that ranks drop different units."""
    (first, seed), (second, other_seed) = tf_world.run(_seeds, size=2)

    assert first == second
    assert seed != other_seed


def _refused(rank, size):
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp
    from sagemaker_dist.errors import OptionError

    sdp.init()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    for given in (model, [model], model.layers[0]):
        with pytest.raises(OptionError) as caught:
            sdp.broadcast_variables(given)
        assert (("variables",), "option") == (caught.value.about, caught.value.kind)
    growing = tf.Variable([1.0], shape=tf.TensorShape([None]), name="growing")
    with pytest.raises(OptionError) as caught:
        sdp.broadcast_variables([growing])
    assert (("variables",), "shape") == (caught.value.about, caught.value.kind)
    for root in (True, 1.0, "0", np.int64(2), -1):
        with pytest.raises(OptionError) as caught:
            sdp.broadcast_variables(model.variables, root)
        assert ("root_rank",) == caught.value.about
    sdp.broadcast_variables(lambda: model.variables)


def test_what_cannot_be_broadcast_is_refused(tf_world):
    tf_world.run(_refused, size=1)


def _built_otherwise(rank, size, units, dtypes):
    """Return the errors of broadcast_variables() for different models, eager and in a function."""
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    wide = keras.layers.Dense(units[rank], dtype=dtypes[rank], name="wide")
    layers = [keras.layers.Input((8,)), wide, keras.layers.Dense(1)]
    model = keras.Sequential(layers, name="net")
    said = []

    def call():
        sdp.broadcast_variables(model.variables)

    for each, error in (
        (call, tf.errors.FailedPreconditionError),
        (tf.function(call), tf.errors.InvalidArgumentError),
    ):
        with pytest.raises(error) as told:
            each()
        said.append(told.value.message)
    return said, float(sdp.allreduce(1.0, op=sdp.Sum))


_SINGLE = ("float32",) * 3


@pytest.mark.parametrize(
    ("units", "dtypes", "expected"),
    [
        ((16, 16, 17), _SINGLE, "float32 [8, 17] on rank 2 and float32 [8, 16] on rank 0"),
        ((17, 16, 16), _SINGLE, "float32 [8, 17] on rank 0 and float32 [8, 16] on rank 1"),
        ((2, 2), ("float32", "float64"), "float64 [8, 2] on rank 1 and float32 [8, 2] on rank 0"),
    ],
)
def test_the_rank_whose_model_differs_is_named(tf_world, units, dtypes, expected):
    """The error names the first different variable, too; the next collective works."""
    expected = f"the variable net/wide/kernel is {expected}"
    found = tf_world.run(_built_otherwise, units, dtypes, size=len(units))
    for (eager, in_function), total in found:
        assert f"broadcast_variables(): {expected}. " in eager
        assert "differ between ranks" in in_function
        assert "Condition" not in in_function
        assert len(units) == total


_DENSE = [("a/kernel", "float32 [2, 3]", "a 0 kernel"), ("a/bias", "float32 [3]", "a 0 bias")]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([_DENSE, _DENSE[:1]], "rank 1 has no variable a/bias, which is float32 [3] on rank 0"),
        (
            [_DENSE[:1], _DENSE],
            "rank 1 has a variable a/bias (float32 [3]), which rank 0 does not have",
        ),
        (
            [_DENSE[::-1], _DENSE, _DENSE],
            "at the same position rank 0 has the variable a/bias (float32 [3]) and rank 1 has"
            " a/kernel (float32 [2, 3])",
        ),
    ],
)
def test_missing_variables_and_other_orders_are_described(ranks, expected):
    from smdist.dataparallel.tensorflow.variable_differences import difference

    assert expected == difference(ranks)
