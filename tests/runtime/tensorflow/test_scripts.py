# SPDX-License-Identifier: Apache-2.0
"""Scripts as SMDDP's and Horovod's documentation has them, after the rename of the import."""

import numpy as np


def _data():
    random = np.random.default_rng(0)
    images = random.normal(size=(64, 8, 8, 1)).astype("float32")
    return images, random.integers(0, 10, 64)


def _smddp(rank, size, folder):
    """SageMaker's guide to SMDDP for TensorFlow 2; opt.variables() is opt.variables in Keras 3."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[sdp.local_rank()], "GPU")
    dataset = tf.data.Dataset.from_tensor_slices(_data()).shard(sdp.size(), sdp.rank()).batch(8)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    loss = tf.losses.SparseCategoricalCrossentropy()
    opt = tf.optimizers.Adam(0.000125 * sdp.size())
    checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            probs = model(images, training=True)
            loss_value = loss(labels, probs)
        tape = sdp.DistributedGradientTape(tape)
        grads = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905  as users do
        if first_batch:
            sdp.broadcast_variables(model.variables, root_rank=0)
            sdp.broadcast_variables(opt.variables, root_rank=0)
        return sdp.oob_allreduce(loss_value)

    losses = []
    for batch, (images, labels) in enumerate(dataset.repeat(3)):
        losses.append(float(training_step(images, labels, batch == 0)))
    if sdp.rank() == 0:
        checkpoint.save(f"{folder}/checkpoints")
    return losses, [np.array(each).tobytes() for each in model.trainable_variables]


def test_a_script_of_smddp_trains(tf_world, tmp_path):
    """The loss is the same on all ranks, and so are the weights."""
    first, second = tf_world.run(_smddp, str(tmp_path), size=2)

    assert first == second
    assert list(tmp_path.glob("checkpoints*.index"))


def _horovod(rank, size, folder):
    """Horovod's Keras example; Keras 3 has no experimental_run_tf_function."""
    import keras

    import smdist.dataparallel.tensorflow.keras as hvd

    hvd.init()
    dataset = [part[hvd.rank() :: hvd.size()] for part in _data()]
    model = keras.Sequential(
        [
            keras.layers.Conv2D(4, [3, 3], activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    scaled_lr = 0.001 * hvd.size()
    opt = keras.optimizers.Adam(scaled_lr)
    opt = hvd.DistributedOptimizer(
        opt, backward_passes_per_step=1, average_aggregated_gradients=True
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"]
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
    ]
    if hvd.rank() == 0:
        path = f"{folder}/checkpoint-{{epoch}}.weights.h5"
        callbacks.append(keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
    history = model.fit(*dataset, batch_size=8, callbacks=callbacks, epochs=4, verbose=0)
    weights = [np.array(each).tobytes() for each in model.trainable_variables]
    return history.history, weights


def test_a_script_of_horovod_trains(tf_world, tmp_path):
    """The history is the same on all ranks, and so are the weights."""
    first, second = tf_world.run(_horovod, str(tmp_path), size=2)

    assert first == second
    assert 4 == len(list(tmp_path.iterdir()))
