# SPDX-License-Identifier: Apache-2.0
"""What a DistributedOptimizer takes over from the optimizer that it was made of."""

import numpy as np
import pytest


def _twin(plain, is_scaled=False, **options):
    import keras

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    plain = keras.optimizers.LossScaleOptimizer(plain) if is_scaled else plain
    return sdp.DistributedOptimizer(plain, **options)


def _decayed(rank, size, is_scaled, steps):
    """Two weights after a step without gradients, one of them excluded from weight decay."""
    import keras
    import tensorflow as tf

    weights = [keras.Variable([1.0], name=name) for name in ("kernel", "bias")]
    plain = keras.optimizers.SGD(1.0, weight_decay=0.5, gradient_accumulation_steps=steps)
    plain.exclude_from_weight_decay(var_names=["bias"])
    optimizer = _twin(plain, is_scaled)
    for _ in range(steps or 1):
        optimizer.apply([tf.zeros([1])] * 2, weights)
    return [float(weight[0]) for weight in weights]


@pytest.mark.parametrize(
    ("is_scaled", "steps"), [(False, None), (False, 2), (True, None), (True, 2)]
)
def test_exclusions_from_weight_decay_are_kept(tf_world, is_scaled, steps):
    [found] = tf_world.run(_decayed, is_scaled, steps, size=1)

    assert [0.5, 1.0] == found


def _fitted(keras, optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 2)), batch_size=2, verbose=0)
    return model


def _went_on(rank, size, folder, is_scaled):
    """An optimizer after four updates, its twin that adds up two passes, and a loaded one."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    plain = keras.optimizers.Nadam(0.1, use_ema=True)
    plain = keras.optimizers.LossScaleOptimizer(plain) if is_scaled else plain
    model = _fitted(keras, plain)
    model.save(f"{folder}/{is_scaled}.keras")
    loaded = hvd.load_model(f"{folder}/{is_scaled}.keras", backward_passes_per_step=2)
    wrapped = hvd.DistributedOptimizer(plain, name="other", backward_passes_per_step=2)
    return [_kept(each) for each in (plain, wrapped, loaded.optimizer)]


def _kept(optimizer):
    """Updates so far, what is added up, and all other state but counts, in its order."""
    sums = [each for each in optimizer.variables if "gradient_accumulator" in each.path]
    counts = {id(each) for each in optimizer.variables if each.path.endswith("iteration")}
    state = [
        np.array(each).ravel().tolist()
        for each in optimizer.variables
        if id(each) not in counts and not any(each is one for one in sums)
    ]
    return int(optimizer.iterations), sum(float(np.abs(each).sum()) for each in sums), state


@pytest.mark.parametrize("is_scaled", [False, True])
def test_state_goes_on_where_passes_are_added_up(tf_world, tmp_path, is_scaled):
    """Wrapped again or loaded: momenta, averages and the number of updates."""
    [(plain, wrapped, loaded)] = tf_world.run(_went_on, str(tmp_path), is_scaled, size=1)

    assert (4, 0) == plain[:2]
    assert 6 < sum(map(any, plain[2]))  # rate, product, and three for each of two weights
    assert plain == wrapped == loaded


def _late(rank, size):
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd
    from sagemaker_dist.errors import OptionError

    class Late(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            if not hasattr(self, "late"):
                self.late = self.add_variable((), name="late")
            return super().apply(grads, trainable_variables)

    hvd.init()
    optimizer = Late(0.1)
    optimizer.apply([np.ones(2, "float32")], [keras.Variable([1.0, 2.0])])
    with pytest.raises(OptionError) as caught:
        hvd.DistributedOptimizer(optimizer)
    assert (("optimizer",), "option") == (caught.value.about, caught.value.kind)


def test_state_that_has_no_place_is_told(tf_world):
    tf_world.run(_late, size=1)


def _rates(rank, size, is_scaled):
    """The rates of a schedule without configuration, of one, and of a function."""
    import keras
    import tensorflow as tf

    class Bare(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, first):
            self.first = first

        def __call__(self, step):
            return self.first / tf.cast(step + 1, tf.float32)

    class Told(Bare):
        def get_config(self):
            return {"first": self.first}

    found = []
    for rate in (Bare(0.5), Told(0.25), lambda: 0.125):
        weight = keras.Variable([1.0])
        plain = keras.optimizers.SGD(rate, momentum=0.5)
        optimizer = _twin(plain, is_scaled)
        optimizer.apply([tf.ones([1])], [weight])
        found.append(float(weight[0]))
        assert plain._learning_rate is rate
    return found


@pytest.mark.parametrize("is_scaled", [False, True])
def test_schedules_and_functions_are_taken_as_they_are(tf_world, is_scaled):
    """Also where Keras could neither write nor read them."""
    factor = 2**15 if is_scaled else 1  # of the loss, which these gradients have not
    [found] = tf_world.run(_rates, is_scaled, size=1)

    assert [1 - rate / factor for rate in (0.5, 0.25, 0.125)] == pytest.approx(found)


def _own_classes(rank, size):
    import keras

    from sagemaker_dist.errors import OptionError

    class Silent(keras.optimizers.SGD):
        def __init__(self, extra=3, **others):
            super().__init__(**others)
            self.extra = extra

    class Broken(keras.optimizers.SGD):
        def get_config(self):
            return {**super().get_config(), "odd": 1}

    class Whole(Silent):
        def get_config(self):
            return {**super().get_config(), "extra": self.extra}

    for is_scaled in (False, True):
        with pytest.raises(OptionError) as silent:
            _twin(Silent(extra=7), is_scaled)
        with pytest.raises(OptionError) as broken:
            _twin(Broken(), is_scaled)
        assert (("get_config",), "incomplete") == (silent.value.about, silent.value.kind)
        assert (
            "Silent.get_config() does not return extra: the distributed optimizer is built from"
            " get_config(), and a saved model would lose this value, too. Make get_config() return"
            " all arguments of __init__()."
        ) == str(silent.value)
        assert (("get_config",), "option") == (broken.value.about, broken.value.kind)
        assert "odd" in broken.value.why  # Keras's own words
    return _twin(Whole(extra=7)).extra


def test_classes_that_lose_their_options_are_refused(tf_world):
    assert [7] == tf_world.run(_own_classes, size=1)
