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
        with pytest.raises(OptionError, match=r"Pass model\.variables"):
            sdp.broadcast_variables(given)
    growing = tf.Variable([1.0], shape=tf.TensorShape([None]), name="growing")
    with pytest.raises(OptionError, match=r"growing.*Assign broadcast"):
        sdp.broadcast_variables([growing])
    for root in (True, 1.0, "0", np.int64(2), -1):
        with pytest.raises(OptionError, match="root_rank is"):
            sdp.broadcast_variables(model.variables, root)
    sdp.broadcast_variables(lambda: model.variables)


def test_what_cannot_be_broadcast_is_refused(tf_world):
    tf_world.run(_refused, size=1)
