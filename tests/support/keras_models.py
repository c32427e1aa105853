# SPDX-License-Identifier: Apache-2.0
"""Small Keras models for tests of pipelines, with a batch for each, and a run in one process.

Every function makes the same model in every process: layers have names and seeds of their own.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

Batch = tuple[Any, Any]


def residual_mlp() -> keras.Model:
    """Skip connection, weight penalty, BatchNormalization and a nested model."""
    x = inputs = layers.Input((8,))
    x = skip = layers.Dense(12, activation="relu", kernel_regularizer="l2", name="a")(x)
    x = layers.BatchNormalization(name="norm")(x)
    x = keras.Sequential([layers.Dense(12, name="b"), layers.Dropout(0.2, seed=5)], name="inner")(x)
    x = layers.Add(name="sum")([x, skip])
    return keras.Model(inputs, layers.Dense(2, name="head")(x))


def shared_layer() -> keras.Model:
    """Layer that is called twice, with another layer between."""
    inputs = layers.Input((8,))
    shared = layers.Dense(8, activation="tanh", name="shared")
    x = layers.Dense(8, name="between")(shared(inputs))
    return keras.Model(inputs, layers.Dense(2, name="head")(shared(x)))


def two_inputs() -> keras.Model:
    """Two named inputs and two named outputs."""
    left, right = layers.Input((8,), name="left"), layers.Input((3,), name="right")
    x = layers.Dense(6, activation="relu", name="a")(left)
    y = layers.Dense(6, name="b")(right)
    z = layers.Dense(6, activation="tanh", name="c")(layers.Concatenate(name="both")([x, y]))
    one, other = layers.Dense(1, name="one")(z), layers.Dense(2, name="other")(layers.Add()([z, y]))
    return keras.Model({"left": left, "right": right}, {"one": one, "other": other})


def masked_lstm() -> keras.Model:
    """Mask of padded steps, through an LSTM, up to the loss."""
    inputs = layers.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8, mask_zero=True, name="embedding")(inputs)
    x = layers.LSTM(8, return_sequences=True, name="lstm")(x)
    return keras.Model(inputs, layers.Dense(3, name="head")(x))


class TiedGPT(keras.Model):
    """Subclassed model: embedding that is also the head, positions from a range, add_loss()."""

    def __init__(self, width: int = 8, vocabulary: int = 13) -> None:
        super().__init__(name="tied_gpt")
        self.tokens = layers.Embedding(vocabulary, width, name="tokens")
        self.positions = layers.Embedding(6, width, name="positions")
        self.attention = layers.MultiHeadAttention(2, width // 2, name="attention")
        self.norm = layers.LayerNormalization(name="norm")
        self.hidden = layers.Dense(2 * width, activation="gelu", name="hidden")
        self.back = layers.Dense(width, name="back")

    def call(self, ids: Any, training: bool | None = None) -> Any:
        x = self.tokens(ids) + self.positions(ops.arange(ids.shape[1]))
        x = x + self.attention(x, x, use_causal_mask=True)
        x = x + self.back(self.hidden(self.norm(x)))
        self.add_loss(0.01 * ops.mean(ops.square(x)))
        return ops.matmul(x, ops.transpose(self.tokens.embeddings))


class Gate(layers.Layer):
    """Layer whose call() branches on a value."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.large, self.small = layers.Dense(8, name="large"), layers.Dense(8, name="small")

    def build(self, shape: Any) -> None:
        self.large.build(shape)
        self.small.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return ops.cond(ops.sum(x) > 0, lambda: self.large(x), lambda: self.small(x))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Branching(keras.Model):
    """Subclassed model with control flow in a layer."""

    def __init__(self) -> None:
        super().__init__(name="branching")
        self.first, self.gate = layers.Dense(8, activation="tanh", name="first"), Gate(name="gate")
        self.head = layers.Dense(2, name="head")

    def call(self, x: Any) -> Any:
        return self.head(self.gate(self.first(x)))


def unet() -> keras.Model:
    """U-Net: convolutions with skips around the lower levels."""
    x = inputs = layers.Input((16, 16, 2))
    skips = []
    for level, width in enumerate((4, 8)):
        x = layers.Conv2D(width, 3, padding="same", activation="relu", name=f"down{level}")(x)
        x = layers.BatchNormalization(name=f"norm{level}")(x)
        skips.append(x)
        x = layers.MaxPooling2D(name=f"pool{level}")(x)
    x = layers.Conv2D(16, 3, padding="same", activation="relu", name="middle")(x)
    for level, width in reversed(list(enumerate((4, 8)))):
        x = layers.Conv2DTranspose(width, 2, strides=2, name=f"up{level}")(x)
        x = layers.Concatenate(name=f"join{level}")([x, skips[level]])
        x = layers.Conv2D(width, 3, padding="same", activation="relu", name=f"side{level}")(x)
    return keras.Model(inputs, layers.Conv2D(2, 1, name="head")(x))


def _block(x: Any, memory: Any, name: str) -> Any:
    """Transformer block, with attention to `memory` if there is one."""
    norm = layers.LayerNormalization(name=f"{name}_norm")(x)
    x = layers.Add(name=f"{name}_add")(
        [x, layers.MultiHeadAttention(2, 4, name=f"{name}_self")(norm, norm, use_causal_mask=True)]
    )
    if memory is not None:
        found = layers.MultiHeadAttention(2, 4, name=f"{name}_cross")(x, memory)
        x = layers.Add(name=f"{name}_join")([x, found])
    hidden = layers.Dense(16, activation="gelu", name=f"{name}_hidden")(x)
    return layers.Add(name=f"{name}_out")([x, layers.Dense(8, name=f"{name}_back")(hidden)])


def functional_gpt() -> keras.Model:
    """GPT of Keras's layers."""
    inputs = layers.Input((6,), dtype="int32")
    x = layers.Embedding(13, 8, name="tokens")(inputs)
    for number in range(4):
        x = _block(x, None, f"block{number}")
    return keras.Model(inputs, layers.Dense(13, name="head")(x))


def encoder_decoder() -> keras.Model:
    """Encoder and decoder with one shared embedding and padded inputs."""
    source, target = layers.Input((6,), dtype="int32"), layers.Input((6,), dtype="int32")
    embedding = layers.Embedding(13, 8, mask_zero=True, name="tokens")
    memory, x = embedding(source), embedding(target)
    for number in range(2):
        memory = _block(memory, None, f"encoder{number}")
    for number in range(2):
        x = _block(x, memory, f"decoder{number}")
    return keras.Model([source, target], layers.Dense(13, name="head")(x))


def application(name: str) -> Callable[[], keras.Model]:
    """Return a function that makes a model of keras.applications for small pictures."""

    def make() -> keras.Model:
        return getattr(keras.applications, name)(
            weights=None, input_shape=(32, 32, 3), classes=4, classifier_activation=None
        )

    return make


def _pictures(size: int) -> Batch:
    return _floats((32, 32, 3), size) * 50 + 128, _classes(4, size)[:, 0]


def _floats(shape: tuple[int, ...], size: int) -> Any:
    return np.random.default_rng(0).standard_normal((size, *shape))


def _tokens(most: int, size: int) -> Any:
    ids = np.random.default_rng(1).integers(1, most, (size, 6))
    ids[:, 4:] *= np.arange(size)[:, None] % 2  # every second sample is padded
    return ids.astype("int32")


def _classes(most: int, size: int) -> Any:
    return np.random.default_rng(2).integers(0, most, (size, 6)).astype("int32")


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int], Batch], Any]] = {
    "residual": (residual_mlp, lambda n: (_floats((8,), n), _floats((2,), n)), "mse"),
    "shared": (shared_layer, lambda n: (_floats((8,), n), _floats((2,), n)), "mse"),
    "inputs": (
        two_inputs,
        lambda n: (
            {"left": _floats((8,), n), "right": _floats((3,), n)},
            {"one": _floats((1,), n), "other": _floats((2,), n)},
        ),
        {"one": "mse", "other": "mae"},
    ),
    "masks": (
        masked_lstm,
        lambda n: (_tokens(11, n), _classes(3, n)),
        "logits",
    ),
    "tied": (TiedGPT, lambda n: (_tokens(13, n), _classes(13, n)), "logits"),
    "unet": (unet, lambda n: (_floats((16, 16, 2), n), _floats((16, 16, 2), n)), "mse"),
    "gpt": (functional_gpt, lambda n: (_tokens(13, n), _classes(13, n)), "logits"),
    "translation": (
        encoder_decoder,
        lambda n: ([_tokens(13, n), _tokens(13, n)[::-1]], _classes(13, n)),
        "logits",
    ),
    **{
        name: (application(name), _pictures, "logits")
        for name in (
            *("ResNet50", "MobileNetV3Small", "EfficientNetB0", "DenseNet121", "ConvNeXtTiny"),
        )
    },
    "branching": (Branching, lambda n: (_floats((8,), n), _floats((2,), n)), "mse"),
}
"""For each name: function that makes a model, function that makes a batch, and the loss."""


def loss_of(name: str) -> Any:
    """Return the loss of a model of MODELS, for compile()."""
    loss = MODELS[name][2]
    return (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss == "logits" else loss
    )


def made(name: str, seed: int = 7) -> Any:
    """Return a model of MODELS, equal in every process."""
    keras.backend.clear_session()  # names count from the beginning
    keras.utils.set_random_seed(seed)
    return MODELS[name][0]()


def trained_alone(
    name: str, optimizer: Any, *, steps: int, batch_size: int, microbatches: int, replicas: int = 1
) -> tuple[list[float], dict[str, Any]]:
    """Train a model in this process with the same microbatches as a pipeline.

    Returns:
        Loss of each step, and the values of all variables by their path.
    """
    model = made(name)
    x, y = MODELS[name][1](batch_size * steps * replicas)
    model.compile(optimizer=optimizer, loss=loss_of(name))
    losses = []
    for step in range(steps):
        total, loss = _averages(model, x, y, step, batch_size, microbatches, replicas)
        optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
        losses.append(loss)
    return losses, {each.path: each.numpy() for each in model.variables}


def part_of(data: Any, start: int, size: int) -> Any:
    """Return samples of a structure of arrays."""
    return keras.tree.map_structure(lambda each: each[start : start + size], data)


def _averages(
    model: Any, x: Any, y: Any, step: int, batch_size: int, microbatches: int, replicas: int
) -> tuple[list[Any], float]:
    size = batch_size // microbatches
    total: list[Any] = []
    losses = []
    for replica in range(replicas):
        for number in range(microbatches):
            start = (step * replicas + replica) * batch_size + number * size
            inputs = keras.tree.map_structure(tf.convert_to_tensor, part_of(x, start, size))
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True)
                loss = model.compute_loss(x=None, y=part_of(y, start, size), y_pred=outputs)
            found = tape.gradient(
                loss, [each.value for each in model.trainable_variables],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )  # fmt: skip
            found = [tf.convert_to_tensor(each) / microbatches / replicas for each in found]
            total = found if not total else [a + b for a, b in zip(total, found, strict=True)]
            losses.append(float(loss))
    return total, float(np.mean(losses))
