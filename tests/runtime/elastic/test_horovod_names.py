# SPDX-License-Identifier: Apache-2.0
"""Elastic training under Horovod's names: real ranks and engines, agents in the test's process."""

import os
import signal
import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist
from elastic_losses import watch
from error_fields import fields_raised
from ports import free_port

SAMPLES, BATCH, EPOCHS = 120, 4, 2
VARIABLES = ("SMDIST_ELASTIC_SOCKET", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE",
             "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


def job(rank, size, sockets, port, killed):
    """Train two epochs with hvd.elastic; rank `killed` dies in the middle of a step."""
    dist.destroy_process_group()
    os.environ |= {
        "SMDIST_ELASTIC_SOCKET": sockets[rank],
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        return train_elastically(rank, killed)
    finally:
        for variable in VARIABLES:
            os.environ.pop(variable, None)


def train_elastically(first_rank, killed):
    import smdist.dataparallel.torch.horovod as hvd

    hvd.init()
    torch.manual_seed(first_rank)  # run() sends rank 0's weights
    data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    target = data.sum(1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    plain = {"epoch": 0, "step": 0, "seen": [], "worlds": [], "resets": 0}
    state = hvd.elastic.TorchState(
        model, optimizer, train_sampler=sampler, scheduler=scheduler, **plain
    )

    @hvd.elastic.run
    def train(state, epochs):
        state.worlds = [*state.worlds, hvd.size()]
        for state.epoch in range(state.epoch, epochs):  # noqa: B020  evaluated once, before it
            sampler.set_epoch(state.epoch)
            loader = torch.utils.data.DataLoader(range(SAMPLES), BATCH, sampler=sampler)
            for number, batch in enumerate(loader):
                optimizer.zero_grad()
                loss = ((model(data[batch]) - target[batch]) ** 2).mean()
                if state.step == 4 and first_rank == killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                optimizer.step()
                every = hvd.allgather(batch).tolist()
                state.seen = [*state.seen, *([state.epoch, each] for each in every)]
                state.step += 1
                state.train_sampler.record_batch(number, len(batch))
                state.commit()
        return "done"

    calls = []
    state.register_reset_callbacks([lambda: calls.append(hvd.size())])
    said = train(state, epochs=EPOCHS)
    result = {
        "said": said,
        "rank": hvd.rank(),
        "calls": calls,
        "lr": optimizer.param_groups[0]["lr"],
        "weights": [value.tolist() for value in model.parameters()],
        "seen": state.seen,
        "worlds": state.worlds,
    }
    hvd.shutdown()
    return result


def test_a_host_is_lost_and_the_others_go_on(world, hosts):
    """DistributedOptimizer of the lost world goes on; no sample is lost or taken twice."""
    started, stop, killed = hosts(3), threading.Event(), 1
    sockets = [str(place.socket) for place in started.places]
    call = partial(
        world.outcomes, job, sockets, free_port(), killed, size=3, hosts="abc", deadline=100
    )
    pids = [child.pid for child in world._ranks[:3]]
    watcher = threading.Thread(target=watch, args=(pids, started.agents, stop))
    watcher.start()
    try:
        (_, one), (_, dead), (_, other) = call()
    finally:
        stop.set()
        watcher.join()

    assert "died with exit code -9" == dead
    assert isinstance(one, dict), one
    assert isinstance(other, dict), other
    assert [3, 2] == one["worlds"] == other["worlds"]
    assert [2] == one["calls"] == other["calls"]
    assert (0, 1, "done") == (one["rank"], other["rank"], one["said"])
    assert one["weights"] == other["weights"]
    assert 0.03 == one["lr"]
    everything = [(epoch, i) for epoch in range(EPOCHS) for i in range(SAMPLES)]
    assert everything == sorted(map(tuple, one["seen"]))


def wrong_states(rank, size):
    import smdist.dataparallel.torch.horovod as hvd

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = hvd.elastic.ElasticSampler(4)
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    hvd.init()
    found = [
        *fields_raised(lambda: hvd.elastic.TorchState(model)),
        *fields_raised(lambda: hvd.elastic.TorchState(model, optimizer, a=sampler, b=sampler)),
        *fields_raised(lambda: hvd.elastic.TorchState(model, optimizer, a=object())),
        *fields_raised(lambda: hvd.elastic.run(lambda state: None)(state)),
    ]
    hvd.shutdown()
    return found


def two_syncs(rank, size, port):
    """Share a state before any commit, change it, return to it; then share a change."""
    import smdist.dataparallel.torch.horovod as hvd

    dist.destroy_process_group()
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        hvd.init()
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, rank + 1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = hvd.elastic.TorchState(model, optimizer, batch=20 + rank)
        state.sync()
        shared = state.batch, model.weight.item()
        torch.nn.init.zeros_(model.weight)
        state.batch = 30
        state.restore()
        restored = state.batch, model.weight.item()
        torch.nn.init.constant_(model.weight, rank + 5.0)
        optimizer.param_groups[0]["lr"] = rank + 0.5
        state.batch = 40 + rank
        state.sync()
        found = state.batch, model.weight.item(), optimizer.param_groups[0]["lr"]
        state.batch = 50
        state.restore()
        hvd.shutdown()
        return shared, restored, found, state.batch
    finally:
        for variable in VARIABLES:
            os.environ.pop(variable, None)


def test_sync_shares_the_present_state_of_rank_0_and_commits_it(world):
    """Before any commit, and with changes since the last one."""
    expected = ((20, 1.0), (20, 1.0), (40, 5.0, 0.5), 40)

    assert [expected] * 2 == world.run(two_syncs, free_port(), size=2)


def test_wrong_states_are_refused(world):
    """Also an engine that belongs to torch.distributed, whose group would stay as it is."""
    expected = [("optimizer", "missing"), ("b", "conflict"), ("a", "type"), ("run", "conflict")]

    assert [expected] * 2 == world.run(wrong_states, size=2)


def keras_by_fit(rank, size):
    import keras
    import numpy as np
    import tensorflow as tf

    import smdist.dataparallel.tensorflow.keras as hvd
    from smdist.dataparallel.tensorflow import elastic as of_tensorflow

    hvd.init()
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    x, y = np.ones([12, 2], "float32"), np.ones([12, 1], "float32")
    commits = []

    @hvd.elastic.run
    def train(state):
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
        ]
        before = state.num_commits
        model.fit(x, y, batch_size=4, epochs=3 - state.epoch, callbacks=callbacks, verbose=0)
        commits.append(state.num_commits - before)

    train(state)
    weights = [each.tolist() for each in model.get_weights()]
    state.epoch = 7
    state.restore()
    variable = tf.Variable([float(rank)])
    loop = of_tensorflow.TensorFlowState([variable], batch=0)
    loop.sync()  # without save() or commit() before it, as Horovod's scripts call it
    variable.assign([rank + 3.0])
    loop.sync()
    wrong = [
        *fields_raised(lambda: of_tensorflow.TensorFlowState(session=1)),
        *fields_raised(lambda: of_tensorflow.TensorFlowKerasState(model, backend="x")),
        *fields_raised(lambda: hvd.elastic.CommitStateCallback(state, 0)),
        *fields_raised(lambda: hvd.elastic.UpdateBatchStateCallback(loop.world())),
    ]
    hvd.shutdown()
    return weights, state.epoch, state.batch, commits, variable.numpy().tolist(), wrong


@pytest.fixture(scope="module")
def tf_ranks():
    from tf_ranks import TensorFlowWorld

    world = TensorFlowWorld(2)
    yield world
    world.close()


def test_states_and_callbacks_of_keras(tf_ranks):
    """Rank 0's state is sent first; callbacks count batches and epochs, and commit."""
    (one, *rest), (other, *same) = tf_ranks.run(keras_by_fit, size=2)

    assert one == other
    assert rest == same
    assert 3 == rest[0]
    assert 0 == rest[1]
    assert [9 // 2 + 3] == rest[2]  # after every other batch, and at the ends of 3 epochs
    assert [3.0] == rest[3]
    expected = [
        ("session", "unsupported"),
        ("variables", "missing"),
        ("backend", "unsupported"),
        ("batches_per_commit", ""),
        ("batch", "missing"),
    ]
    assert [name for name, _ in expected] == [name for name, _ in rest[4]]
