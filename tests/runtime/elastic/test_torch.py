# SPDX-License-Identifier: Apache-2.0
"""Training with torch that loses hosts: real ranks and engines, agents in the test's process."""

import os
import signal
import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist
from elastic_losses import watch

from smdist import elastic
from smdist.elastic.agent_client import Generation
from smdist.elastic.elastic_error import BrokenGenerationError, ElasticError
from smdist.elastic.torch_world import TorchWorld

SAMPLES, BATCH, EPOCHS = 240, 4, 2
VARIABLES = ("SMDIST_ELASTIC_SOCKET", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE")


class Deadly(elastic.TorchState):
    """State whose rank dies when it sends or receives the state of a smaller world."""

    def _broadcast(self, committed):
        if self._size > dist.get_world_size():
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._broadcast(committed)


def die_at(rank, kills, step):
    if kills.get(step) == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def job(rank, size, sockets, kills, deadly):
    """Train two epochs elastically; rank `kills[step]` dies in the middle of a step."""
    own = {"SMDIST_ELASTIC_SOCKET": sockets[rank], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(own)
    try:
        return train_elastically(rank, kills, deadly == rank)
    finally:
        for variable in VARIABLES:
            os.environ.pop(variable, None)


def train_elastically(first_rank, kills, is_deadly):
    torch.manual_seed(first_rank)  # run() sends rank 0's weights
    data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))
    target = data.sum(1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)
    sampler = elastic.ElasticSampler(SAMPLES)
    make = Deadly if is_deadly else elastic.TorchState
    state = make(model, optimizer, sampler=sampler, epoch=0, step=0, seen=[], losses=[], worlds=[])

    def train(state):
        ddp = torch.nn.parallel.DistributedDataParallel(state.model)
        state.worlds = [*state.worlds, dist.get_world_size()]
        for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020  evaluated once, before it
            sampler.set_epoch(state.epoch)
            for batch in torch.utils.data.DataLoader(range(SAMPLES), BATCH, sampler=sampler):
                optimizer.zero_grad()
                loss = ((ddp(data[batch]) - target[batch]) ** 2).mean()
                die_at(first_rank, kills, state.step)
                loss.backward()
                optimizer.step()
                every = [torch.empty_like(batch) for _ in range(dist.get_world_size())]
                dist.all_gather(every, batch)
                state.seen = [*state.seen, *([state.epoch, int(i)] for b in every for i in b)]
                state.losses = [*state.losses, loss.item()]
                state.step += 1
                sampler.record(len(batch))
                state.commit()

    try:
        elastic.run(train, state)
    except ElasticError as error:
        return {"kind": error.kind, "what": error.what, "lost": [e["host"] for e in error.lost]}
    names = ("seen", "losses", "worlds", "step")
    return {
        "rank": dist.get_rank(),
        "lr": optimizer.param_groups[0]["lr"],
        "weights": [value.tolist() for value in model.parameters()],
        **{name: getattr(state, name) for name in names},
    }


@pytest.fixture
def lose(world, hosts):
    """Run the job on hosts with one rank each; return what each rank has returned, or why not."""

    def lose(size, kills, *, least=1, deadly=None):
        started, stop = hosts(size, least=least), threading.Event()
        sockets = [str(place.socket) for place in started.places]
        call = partial(
            world.outcomes, job, sockets, kills, deadly, size=size, hosts="abcd", deadline=150
        )
        pids = [child.pid for child in world._ranks[:size]]
        watcher = threading.Thread(target=watch, args=(pids, started.agents, stop))
        watcher.start()
        try:
            return [value for _, value in call()]
        finally:
            stop.set()
            watcher.join()

    return lose


def check_epochs(found):
    """Check that each sample was seen once in each epoch, and that the training has succeeded."""
    everything = [(epoch, i) for epoch in range(EPOCHS) for i in range(SAMPLES)]

    assert everything == sorted(map(tuple, found["seen"]))
    assert len(found["seen"]) == len(set(map(tuple, found["seen"])))
    assert found["losses"][-1] < 0.1 * found["losses"][0]


def test_two_hosts_of_three_go_on(lose):
    """The rank dies in mid-step. No committed sample is lost or repeated."""
    one, killed, other = lose(3, {7: 1})

    assert "died with exit code -9" == killed
    assert [3, 2] == one["worlds"] == other["worlds"]
    assert (0, 1) == (one["rank"], other["rank"])
    assert one["weights"] == other["weights"]
    assert 0.03 * 2 / 3 == pytest.approx(one["lr"])
    check_epochs(one)


def test_two_losses_in_a_row_leave_one_host(lose):
    """The first host is the first that is lost, so the one left is no rank 0 of before."""
    first, left, second = lose(3, {7: 0, 15: 2})

    assert ["died with exit code -9"] * 2 == [first, second]
    assert [3, 2, 1] == left["worlds"]
    assert 0 == left["rank"]
    assert 0.03 / 3 == pytest.approx(left["lr"])
    check_epochs(left)


def test_a_loss_while_the_others_connect(lose):
    """Host 2 dies after the loss of host 0, as the state is sent in the smaller world."""
    *_, last = found = lose(4, {5: 0}, deadly=2)

    assert [4, 2] == last["worlds"] == found[1]["worlds"]
    assert found[1]["weights"] == last["weights"]
    check_epochs(last)


def test_below_elastic_min_every_rank_raises_one_clear_error(lose):
    found = [each for each in lose(3, {7: 1}, least=3) if isinstance(each, dict)]
    expected = {
        "kind": "too_few_hosts",
        "what": "2 of 3 hosts are left, and elastic_min is 3",
        "lost": ["algo-2"],
    }

    assert [expected] * 2 == found


class Broken:
    """Store of a generation that has lost a host; it lists the counters that were wanted."""

    def __init__(self):
        self.keys = []

    def add(self, key, value):
        self.keys.append(key)
        raise BrokenGenerationError("a host of generation 1 was lost")


def start_twice(rank, size):
    where = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 1, "hosts": (), "lost": ()}
    world, keys = TorchWorld(), []
    for number in (1, 2):
        world.leave()
        store = Broken()
        with pytest.raises(BrokenGenerationError):
            world.enter(Generation(number=number, session="s", **where), store)
        keys.append(store.keys)
    return keys


def test_a_start_that_has_failed_changes_no_key_of_the_next(world):
    """Ranks whose start has succeeded look for the same keys, and would wait for ever."""
    [(first, second)] = world.run(start_twice, size=1)

    assert first
    assert first == second
