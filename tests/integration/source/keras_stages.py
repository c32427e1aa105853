# SPDX-License-Identifier: Apache-2.0
"""Train a Keras model in stages, as the job says; write losses, stages and the model."""

import json
import os
from pathlib import Path

import keras
import numpy as np

import smdist.modelparallel.tensorflow as smp

smp.init()
inputs = keras.Input((8,))
x = keras.layers.Dense(16, activation="relu", name="first")(inputs)
x = keras.layers.Dense(16, activation="relu", name="second")(x)
model = smp.DistributedModel(
    keras.Model(inputs, keras.layers.Dense(1, name="head")(x)), costs="estimate"
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
rng = np.random.default_rng(smp.dp_rank())
data = rng.standard_normal((64, 8)).astype("float32")
history = model.fit(data, data[:, :1], batch_size=16, epochs=3, verbose=0)

folder = Path(os.environ["SM_MODEL_DIR"])
facts = {
    "loss": history.history["loss"],
    "own": sorted(model.own_values()),
    "place": [smp.pp_rank(), smp.dp_rank()],
}
(folder / f"rank-{smp.rank()}.json").write_text(json.dumps(facts))
model.save(folder / "model.keras")
