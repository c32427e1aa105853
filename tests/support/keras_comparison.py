# SPDX-License-Identifier: Apache-2.0
"""Training of a Keras model in a pipeline, beside one process with the same microbatches."""

import numpy as np

BATCH, MICROBATCHES, STEPS = 8, 4, 3
TOLERANCE = 1e-10


def fitted(_rank, _size, name, config, optimizer, replicas, steps, batch):
    """Train a model by fit() in a pipeline; return losses and the variables of this rank."""
    import keras
    from keras_models import MODELS, loss_of, made, part_of

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"microbatches": MICROBATCHES, **config})
    model = smp.DistributedModel(made(name), costs="estimate")
    model.compile(optimizer=keras.optimizers.deserialize(optimizer), loss=loss_of(name))
    data = MODELS[name][1](batch * steps * replicas)
    losses = []
    for step in range(steps):
        start = (step * replicas + smp.dp_rank()) * batch
        x, y = part_of(data, start, batch)
        losses.append(model.train_on_batch(x, y, return_dict=True)["loss"])
    return losses, model.own_values(), model.plan.stages


def alone(_rank, _size, name, optimizer, replicas, steps, batch):
    """Train a model in one process with the same microbatches."""
    import keras
    from keras_models import trained_alone

    keras.config.set_floatx("float64")
    return trained_alone(
        name, keras.optimizers.deserialize(optimizer), steps=steps, batch_size=batch,
        microbatches=MICROBATCHES, replicas=replicas,
    )  # fmt: skip


def compare(
    world,
    name,
    *,
    size,
    config=None,
    replicas=1,
    optimizer=None,
    deadline=150,
    steps=STEPS,
    batch=BATCH,
):
    """Compare a run of `size` ranks with a run in this process."""
    optimizer = optimizer or {"class_name": "SGD", "config": {"learning_rate": 0.1}}
    config = {"pipeline_parallel_degree": size // replicas, **(config or {})}
    rest = (optimizer, replicas, steps, batch)
    answers = world.run(fitted, name, config, *rest, size=size, deadline=deadline)
    [(expected, values)] = world.run(alone, name, *rest, size=1, deadline=deadline)
    seen = set()
    for losses, own, stages in answers:
        assert size // replicas <= len(stages)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-6)
        for path, value in own.items():
            seen.add(path)
            limit = TOLERANCE * max(1.0, float(np.max(np.abs(values[path]))))
            np.testing.assert_allclose(value, values[path], rtol=0, atol=limit, err_msg=path)

    assert seen == set(values)
