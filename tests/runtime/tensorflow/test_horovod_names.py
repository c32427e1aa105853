# SPDX-License-Identifier: Apache-2.0
"""Functions of Horovod beyond the collectives: groups, local variables, batch statistics, facts."""

import re
from pathlib import Path

import numpy as np
import pytest
from error_fields import fields_raised

WHOLE = (Path(__file__).parents[3] / "docs/from_horovod.md").read_text()
PAGE, _, KERAS = WHOLE.partition("## TensorFlow and Keras")[2].partition("### Keras")
OURS = {"ReduceOp", "oob_allreduce", "overlap", "reduce_scatter", "report"}  # of SMDDP, and our own


def _groups(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    hvd.init()
    one, two = tf.fill([rank + 1, 2], float(rank)), tf.fill([2 * size], rank + 1)
    gathered = hvd.grouped_allgather([one, two])
    reduced = hvd.grouped_reducescatter([two, 2 * two], op=hvd.Sum)
    scaled = hvd.reducescatter(
        tf.ones([size]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0
    )
    variable = tf.Variable([float(rank)])
    same = hvd.broadcast_(variable, 1) is variable
    sent = hvd.broadcast_object_fn(root_rank=1)({"rank": rank})
    numbers = [int(each()) for each in (hvd.rank_op, hvd.size_op, hvd.local_rank_op)]
    hosts = hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous(), int(hvd.local_size_op())
    hvd.shutdown()
    return {
        "gathered": [each.numpy().tolist() for each in gathered],
        "reduced": [each.numpy().tolist() for each in reduced],
        "scaled": scaled.numpy().tolist(),
        "set": (same, variable.numpy().tolist()),
        "sent": sent,
        "numbers": numbers,
        "hosts": hosts,
    }


def test_groups_variables_objects_and_numbers(tf_world):
    for rank, found in enumerate(tf_world.run(_groups, size=2)):
        assert [[[0, 0], [1, 1], [1, 1]], [1, 1, 1, 1, 2, 2, 2, 2]] == found["gathered"]
        assert [[3, 3], [6, 6]] == found["reduced"]
        assert [3.0] == found["scaled"]
        assert (True, [1.0]) == found["set"]
        assert {"rank": 1} == found["sent"]
        assert [rank, 2, rank] == found["numbers"]
        assert (0, 1, True, 2) == found["hosts"]


def _statistics(rank, size, has_mask):
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    hvd.init()
    data = np.random.default_rng(0).normal(2, 3, size=(10, 4, 3)).astype("float32")
    masks = np.random.default_rng(1).random((10, 4)) < 0.7
    split = [(0, 7), (7, 10)]  # unequal batches

    def run(layer, rows, reduce):
        x = tf.Variable(data[rows])
        mask = masks[rows] if has_mask else None
        with tf.GradientTape() as tape:
            out = layer(x, training=True, mask=mask)
            loss = tf.reduce_sum(tf.sin(out))
        gradients = tape.gradient(loss, [x, *layer.trainable_variables])
        shared = [hvd.allreduce(each, op=hvd.Sum) if reduce else each for each in gradients[1:]]
        every = [out, gradients[0], *shared, *layer.non_trainable_variables]
        return [np.asarray(each) for each in every]

    layer = hvd.SyncBatchNormalization(momentum=0.5)
    layer.build(data.shape)
    mine = run(layer, slice(*split[rank]), reduce=True)
    whole_layer = keras.layers.BatchNormalization(momentum=0.5)
    whole_layer.build(data.shape)
    whole = run(whole_layer, slice(None), reduce=False)
    hvd.shutdown()
    for number in (0, 1):  # outputs and their gradients belong to rows
        whole[number] = whole[number][slice(*split[rank])]
    restored = type(layer).from_config(layer.get_config())
    return [float(abs(a - b).max()) for a, b in zip(mine, whole, strict=True)], restored.momentum


@pytest.mark.parametrize("has_mask", [False, True])
def test_batch_statistics_are_those_of_all_ranks(tf_world, has_mask):
    """Outputs, gradients and moving averages are those of one process with the whole batch."""
    for differences, momentum in tf_world.run(_statistics, has_mask, size=2):
        assert max(differences) < 2e-5
        assert 0.5 == momentum


def _local(rank, size, scales):
    import keras
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    hvd.init()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2), keras.layers.Dense(1)])
    first, last = model.layers
    x = tf.constant([[1.0, rank + 1.0]])

    def loss():
        return tf.reduce_sum(model(x))

    options = {"local_layers": last, "scale_local_gradients": scales}
    recorder = tf.GradientTape(persistent=True)
    with hvd.PartialDistributedGradientTape(recorder, **options) as tape:
        value = loss()
    tape.register_local_source(first.bias)
    taped = tape.gradient(value, model.trainable_variables)
    parts = tape.get_local_and_global_gradients(value, model.trainable_variables)
    assert [[first.bias, last.kernel, last.bias], [first.kernel]] == [
        [variable for variable, _ in part] for part in parts
    ]
    np.testing.assert_allclose(parts[0][1][1], taped[2])
    with tf.GradientTape() as plain:
        value = loss()
    own = plain.gradient(value, model.trainable_variables)
    average = [hvd.allreduce(each) for each in own]
    before = [variable.numpy() for variable in model.trainable_variables]
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    optimizer.register_local_var(first.bias)
    optimizer.apply(own, model.trainable_variables)
    steps = [a - b.numpy() for a, b in zip(before, model.trainable_variables, strict=True)]
    hvd.shutdown()
    factor = 1 / size if scales else 1.0
    expected = [average[0], own[1] * factor, own[2] * factor, own[3] * factor]
    return [
        float(max(abs(a - e).max(), abs(b - e).max()))
        for a, b, e in zip(map(np.asarray, taped), steps, map(np.asarray, expected), strict=True)
    ]


@pytest.mark.parametrize("scales", [True, False])
def test_gradients_of_local_layers_stay_on_their_rank(tf_world, scales):
    for differences in tf_world.run(_local, scales, size=2):
        assert max(differences) < 1e-6


def test_the_page_has_every_name_and_says_the_truth_about_it():
    """What is the same or different is there; what is refused raises its reason."""
    import smdist.dataparallel.tensorflow as hvd

    rows = re.findall(r"^\| `(\w+)` \| (same|different|refused) \|(.*)\|$", PAGE, re.M)

    assert len(rows) == len({name for name, _, _ in rows})
    assert {name for name, _, _ in rows} == {*hvd.__all__} - OURS
    assert all(len(how) > 8 for _, here, how in rows if here != "same")
    assert all(hasattr(hvd, name) for name in hvd.__all__)


def test_the_page_has_every_name_of_keras():
    """Names of the module, its callbacks and its elastic training."""
    import smdist.dataparallel.tensorflow.elastic as elastic
    import smdist.dataparallel.tensorflow.keras as hvd

    same_as_above = re.findall(r"`(\w+)`", KERAS.partition("The others:")[0].partition(":")[2])
    rows = re.findall(r"^\| `([\w.]+)` \| (?:same|different) \|", KERAS, re.M)
    callbacks = {name.partition(".")[2] for name in rows if name.startswith("callbacks.")}
    of_elastic = re.findall(r"^\| `tensorflow\.((?:keras\.)?elastic\.\w+)`", WHOLE, re.M)
    found = {each.__name__ for each in (elastic.TensorFlowState, elastic.TensorFlowKerasState)}

    assert {*hvd.__all__} - {"report"} == {*same_as_above, *rows} - {
        name for name in rows if "." in name
    }
    assert {*hvd.callbacks.__all__} - {"ModelCheckpoint", "StopCallback"} == callbacks
    assert {f"elastic.{name}" for name in found} | {
        f"keras.elastic.{name}" for name in hvd.elastic.__all__ if name != "run"
    } == set(of_elastic)
    assert "run" in hvd.elastic.__all__
    assert "run" in elastic.__all__


def test_questions_about_libraries_are_answered():
    import smdist.dataparallel.tensorflow as hvd
    import smdist.dataparallel.tensorflow.keras as of_keras

    names = ("mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled",
             "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built")  # fmt: skip

    assert not any(getattr(module, name)() for module in (hvd, of_keras) for name in names)


def test_options_that_cannot_work_are_refused():
    import keras

    import smdist.dataparallel.tensorflow as hvd

    found = fields_raised(
        lambda: hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=2
        )
    )

    assert [("backward_passes_per_step", "unsupported")] == found
    with pytest.raises(ValueError):  # noqa: PT011  Keras has no fields
        hvd.SyncBatchNormalization(fused=True)
