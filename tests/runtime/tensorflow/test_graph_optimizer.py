# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer of an optimizer of tf.compat.v1.train trains as one process does."""

import numpy as np
import pytest
from tf_ranks import joined

STEPS, BATCH, WORDS = 5, 8, 6  # the batch is that of all ranks
OPTIONS = [
    {},
    {"op": "Sum"},
    {"sparse_as_dense": True, "gradient_predivide_factor": 2.0},
    {"compression": "fp16", "groups": 1},
]


def _batches(rank, size):
    """This rank's part of each batch: numbers, and words of which some occur twice."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(STEPS, BATCH, 3)).astype("float32")
    words = random.integers(0, WORDS, (STEPS, BATCH))
    share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    return [(numbers[step][share], words[step][share]) for step in range(STEPS)]


def _distributed(hvd, tf, options):
    plain = tf.compat.v1.train.AdamOptimizer(0.1)
    named = {"op": hvd, "compression": hvd.Compression}
    chosen = {key: getattr(named[key], value) if key in named else value
              for key, value in options.items()}  # fmt: skip
    made = hvd.DistributedOptimizer(plain, **chosen)
    return plain, made


def _loss(tf, weight, table, numbers, words):
    guess = tf.linalg.matvec(numbers, weight) + tf.gather(table, words)
    return tf.reduce_mean((guess - tf.reduce_sum(numbers, axis=1)) ** 2)


def _in_a_session(rank, size, options):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    v1 = tf.compat.v1
    with joined(), tf.Graph().as_default():
        start = v1.constant_initializer(0.5 + rank)
        weight, table = (
            v1.get_variable(n, [k], initializer=start) for n, k in (("w", 3), ("t", WORDS))
        )
        numbers, words = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.int32, [None])
        plain, optimizer = _distributed(hvd, tf, options)
        step = v1.train.get_or_create_global_step()
        loss = _loss(tf, weight, table, numbers, words)
        train = optimizer.minimize(loss, global_step=step)
        assert isinstance(optimizer, type(plain))
        assert optimizer.get_slot(weight, "m") is plain.get_slot(weight, "m") is not None
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for batch in _batches(rank, size):
                session.run(train, dict(zip((numbers, words), batch, strict=True)))
            found = session.run([weight, table, step])
    return [each.tolist() for each in found]


def _eagerly(rank, size, options):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd

    with joined():
        weight, table = tf.Variable([0.5] * 3, name="w"), tf.Variable([0.5] * WORDS, name="t")
        _, optimizer = _distributed(hvd, tf, options)
        for batch in _batches(rank, size):
            optimizer.minimize(lambda batch=batch: _loss(tf, weight, table, *batch),
                               var_list=[weight, table])  # fmt: skip
        return [weight.numpy().tolist(), table.numpy().tolist(), STEPS]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("train", [_in_a_session, _eagerly])
def test_ranks_train_as_one_process(tf_world, train, options):
    """Weights are equal on all ranks, and those of one process; Adam ignores a factor of all."""
    [alone] = tf_world.run(train, {}, size=1)
    first, second = tf_world.run(train, options, size=2)

    assert first == second
    assert STEPS == first[2]
    for mine, theirs in zip(first[:2], alone[:2], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-2 if "compression" in options else 1e-5)


def _clipped(rank, size):
    """Gradients of a script that changes them before it applies them, of which one is None."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as hvd
    from sagemaker_dist.errors import OptionError

    v1 = tf.compat.v1
    with joined(), tf.Graph().as_default():
        used, unused = (v1.get_variable(name, initializer=1.0) for name in ("used", "unused"))
        plain = v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(plain, name="ours")
        pairs = optimizer.compute_gradients((1.0 + rank) * used, [used, unused])
        kept = [pair for pair in pairs if pair[0] is not None]
        train = optimizer.apply_gradients([(tf.minimum(each, 1.25), to) for each, to in kept])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            gradient = session.run(kept[0][0])
            session.run(train)
            found = [float(each) for each in (gradient, *session.run([used, unused]))]
        faults = []
        for call in (
            lambda: hvd.DistributedOptimizer(optimizer),
            lambda: hvd.DistributedOptimizer(plain, backward_passes_per_step=2),
        ):
            with pytest.raises(OptionError) as caught:
                call()
            faults.append((*caught.value.about, caught.value.kind))
    return len(pairs), found, faults


def test_a_script_gets_reduced_gradients_and_applies_them_itself(tf_world):
    faults = [("optimizer", "wrapped"), ("backward_passes_per_step", "unsupported")]

    assert [(2, [1.5, -0.25, 1.0], faults)] * 2 == tf_world.run(_clipped, size=2)
