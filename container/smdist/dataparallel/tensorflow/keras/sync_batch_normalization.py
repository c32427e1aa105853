# SPDX-License-Identifier: Apache-2.0
"""Batch normalization with the statistics of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from smdist.dataparallel.tensorflow import basics
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.row_collectives import gather
from smdist.dataparallel.tensorflow.set_members import members_of


@keras.saving.register_keras_serializable(package="smdist")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]  # untyped
    """Layer BatchNormalization whose mean and variance are those of all ranks' batches together.

    Ranks may have batches of different sizes, and masks. In inference it is BatchNormalization. All
    ranks must call it equally often in training; XLA cannot compile it.

    Args:
        fused: Horovod's argument; must be False or None.
        kwargs: Arguments of keras.layers.BatchNormalization, apart from `synchronized`.

    Raises:
        ValueError: `fused` is true, or `synchronized` is given.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True. Leave it out")
        if kwargs.pop("synchronized", False):
            raise ValueError(
                "SyncBatchNormalization has its own synchronization. Leave synchronized out"
            )
        super().__init__(**kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer, for saving."""
        config: dict[str, Any] = super().get_config()
        config.pop("synchronized", None)
        return config

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Return mean and variance over all ranks; Keras calls it in training alone."""
        mean, variance = super()._moments(inputs, mask)
        if basics.size() == 1:
            return mean, variance
        count = tf.cast(_count(inputs, mask, self._reduction_axes), mean.dtype)
        mine = tf.concat([mean, variance, tf.reshape(count, [1])], axis=0)
        # [ranks, 2 channels + 1]; all ranks' losses depend on this rank's statistics
        [every] = gather([mine[None]], members_of(None), ReduceOp.SUM)
        means, variances, counts = tf.split(every, [mean.shape[0], mean.shape[0], 1], axis=1)
        shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
        whole = tf.reduce_sum(shares * means, axis=0)
        # a rank's variance about the mean of all ranks
        about = variances + tf.square(means - whole)
        return whole, tf.reduce_sum(shares * about, axis=0)


def _count(inputs: Any, mask: Any, axes: Any) -> Any:
    """Return the number of elements of each channel, which the mask lets through."""
    if mask is not None:
        weights = tf.broadcast_to(tf.cast(mask, tf.float32)[..., None], tf.shape(inputs))
        return tf.reduce_sum(weights) / tf.cast(tf.shape(inputs)[-1], tf.float32)
    sizes = tf.gather(tf.shape(inputs), tf.constant(list(axes)))
    return tf.cast(tf.reduce_prod(sizes), tf.float32)
