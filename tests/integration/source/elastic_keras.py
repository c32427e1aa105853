# SPDX-License-Identifier: Apache-2.0
"""Elastic training with Keras' fit, whose rank KILLED dies at the begin of step 7."""

import argparse
import json
import os
import signal
from pathlib import Path

import keras
import numpy as np

import smdist.dataparallel.tensorflow.keras as hvd
from smdist import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--killed", type=int)
killed = parser.parse_known_args()[0].killed
hvd.init()
first_rank = hvd.rank()
keras.utils.set_random_seed(0)
data = np.random.default_rng(0).normal(size=(240, 4)).astype("float32")
target = data.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.03, momentum=0.5)), loss="mse")
sampler = elastic.ElasticSampler(data)
state = elastic.KerasState(model, sampler=sampler, epoch=0, step=0, seen=[], losses=[])


class Commit(keras.callbacks.Callback):
    """Commits after each step the samples that all ranks have processed."""

    def __init__(self, mine):
        super().__init__()
        self.mine = mine

    def on_train_batch_begin(self, batch, logs=None):
        if state.step == 7 and first_rank == killed:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch, logs=None):
        mine = np.array(self.mine[4 * batch : 4 * batch + 4])
        every = hvd.allgather(mine).tolist()
        state.seen = [*state.seen, *([state.epoch, i] for i in every)]
        state.losses = [*state.losses, float(logs["loss"])]
        state.step += 1
        sampler.record(len(mine))
        state.commit()


def train(state):
    for state.epoch in range(state.epoch, 2):  # noqa: B020  evaluated once, before it
        sampler.set_epoch(state.epoch)
        mine = list(sampler)
        calls = [Commit(mine)]
        model.fit(data[mine], target[mine], batch_size=4, shuffle=False, callbacks=calls, verbose=0)


elastic.run(train, state)
result = {"size": hvd.size(), "seen": state.seen, "losses": state.losses}
result["weights"] = [value.tolist() for value in model.get_weights()]
Path(os.environ["SM_MODEL_DIR"], f"{first_rank}.json").write_text(json.dumps(result))
