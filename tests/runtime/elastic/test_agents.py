# SPDX-License-Identifier: Apache-2.0
"""Agents of several hosts, over real connections; ranks are threads that use a rank's client."""

import asyncio

import pytest
from elastic_hosts import SECRET

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.rendezvous.store_protocol import FrameError
from smdist.elastic.agent_client import AgentClient, ElasticStore
from smdist.elastic.elastic_error import BrokenGenerationError, ElasticError
from smdist.launch.elastic import agent as agent_module
from smdist.launch.elastic.agent import ElasticAgent
from smdist.launch.elastic.peer_link import dial

pytestmark = pytest.mark.timeout(60)
SECONDS = 30


class Rank:
    """One rank: its client, and its requests in threads."""

    def __init__(self, hosts, host, local_rank=0):
        self.hosts, self.client = hosts, AgentClient(hosts.places[host].socket, local_rank)
        hosts.clients.append(self.client)

    def re_form(self, generation=0, culprit=None):
        return self.hosts.threads.submit(self.client.next_generation, generation, culprit)


def ranks(hosts):
    return [Rank(hosts, host) for host in range(len(hosts.places))]


def re_form(some, generation=0):
    """Let ranks go on together, and return their generations."""
    return [each.result(SECONDS) for each in [rank.re_form(generation) for rank in some]]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_hosts_that_are_left_agree_whichever_was_lost(hosts, lost):
    job = hosts(3)
    left = [rank for host, rank in enumerate(ranks(job)) if host != lost]
    job.agents[lost].leave("rank 1 was killed by SIGKILL")
    found = re_form(left)
    names = tuple(f"algo-{host + 1}" for host in range(3) if host != lost)

    assert [0, 1] == [each.rank for each in found]
    assert {(1, 2, names)} == {(each.number, each.size, each.hosts) for each in found}
    assert 1 == len({each.session for each in found})
    assert {
        "host": f"algo-{lost + 1}",
        "why": "rank 1 was killed by SIGKILL",
        "is_certain": True,
    } in (found[0].lost)


def test_a_launcher_that_ends_is_a_lost_host(hosts):
    job = hosts(2)
    pair = ranks(job)
    job.agents[0].close()
    (found,) = re_form(pair[1:])

    assert (1, 0, 1) == (found.number, found.rank, found.size)
    assert ["its launcher has ended"] == [each["why"] for each in found.lost]


def test_all_ranks_of_a_host_are_waited_for(hosts):
    job = hosts(2, local_size=2)
    first, second = Rank(job, 1, 0), Rank(job, 1, 1)
    job.agents[0].leave("it was lost")
    early = first.re_form()

    with pytest.raises(TimeoutError):
        early.result(0.3)

    late = second.re_form().result(SECONDS)

    assert (0, 2, 2) == (early.result(SECONDS).rank, late.size, late.local_size)
    assert 1 == late.rank


def test_ranks_of_a_generation_have_a_store(hosts):
    job = hosts(3)
    _, *left = ranks(job)
    job.agents[0].leave("it was lost")
    one, other = [
        ElasticStore(rank.client, found) for rank, found in zip(left, re_form(left), strict=True)
    ]
    waiting = job.threads.submit(other.get, "key", SECONDS)
    one.set("key", b"\x00\xff")

    assert b"\x00\xff" == waiting.result(SECONDS)
    assert [5, 7] == [other.add("number", 5), one.add("number", 2)]
    assert one.has("key")

    other.delete("key")

    assert not one.has("key")
    with pytest.raises(TimeoutError):
        one.get("key", 0.1)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_loss_while_ranks_connect_ends_their_waits(hosts, lost):
    """Also if the host with the store is lost; the ranks then form the generation after that."""
    job = hosts(4)
    every = ranks(job)
    job.agents[0].leave("it was lost")
    first = re_form(every[1:])
    left = [host for host in (1, 2, 3) if host != lost]
    stores = [ElasticStore(every[host].client, first[host - 1]) for host in left]
    waits = [job.threads.submit(store.get, "never", SECONDS) for store in stores]
    job.agents[lost].close()

    for wait in waits:
        with pytest.raises(BrokenGenerationError):
            wait.result(SECONDS)

    second = re_form([every[host] for host in left], generation=1)

    assert {(2, 2)} == {(each.number, each.size) for each in second}
    with pytest.raises(BrokenGenerationError):
        stores[0].set("key", b"of a generation that has ended")


def test_too_few_hosts_are_one_clear_error(hosts):
    job = hosts(3, least=2)
    every = ranks(job)
    job.agents[0].leave("rank 0 was killed by SIGKILL")
    job.agents[2].leave("rank 2 exited with code 1: ValueError: nope")

    with pytest.raises(ElasticError) as caught:
        every[1].re_form().result(SECONDS)

    whys = {
        "algo-1": "rank 0 was killed by SIGKILL",
        "algo-3": "rank 2 exited with code 1: ValueError: nope",
    }
    assert ("too_few_hosts", ("elastic_min",)) == (caught.value.kind, caught.value.about)
    assert whys == {each["host"]: each["why"] for each in caught.value.lost}


def test_a_host_that_hangs_is_left_out_and_learns_it(hosts, monkeypatch):
    """The other ranks name its rank as lost, and it does not become ready."""
    monkeypatch.setattr(agent_module, "_CULPRIT_SECONDS", 0.3)
    job = hosts(3)
    every = ranks(job)
    both = [every[host].re_form(culprit=0) for host in (1, 2)]

    assert [("algo-2", "algo-3")] * 2 == [each.result(SECONDS).hosts for each in both]

    with pytest.raises(ElasticError) as caught:
        every[0].re_form().result(SECONDS)

    assert "dropped" == caught.value.kind
    assert "dropped" == job.agents[0].end["kind"]


def test_half_of_the_hosts_do_not_leave_out_a_silent_one(hosts, monkeypatch):
    monkeypatch.setattr(agent_module, "_CULPRIT_SECONDS", 0.3)
    job = hosts(2)
    every = ranks(job)

    with pytest.raises(ElasticError) as caught:
        every[1].re_form(culprit=0).result(SECONDS)

    assert "no_majority" == caught.value.kind
    assert [("algo-1", False)] == [(e["host"], e["is_certain"]) for e in caught.value.lost]


def test_a_blip_after_which_every_host_is_there_loses_nobody(hosts):
    job = hosts(2)
    found = re_form(ranks(job))

    assert [(1, 2, ())] * 2 == [(each.number, each.size, each.lost) for each in found]


def test_a_host_that_has_finished_is_no_loss(hosts):
    job = hosts(2)
    job.agents[0].finish()
    job.agents[0].close()

    assert job.agents[1].wait_for_others(SECONDS) is True
    assert [] == job.lines


def test_a_host_that_others_needed_and_that_has_finished_is_named(hosts):
    job = hosts(2)
    every = ranks(job)
    job.agents[0].finish()

    with pytest.raises(ElasticError) as caught:
        every[1].re_form().result(SECONDS)

    assert "finished" == caught.value.kind


def test_a_lost_host_waits_for_the_end_of_the_others(hosts):
    job = hosts(3)
    job.agents[1].leave("it was lost")

    assert job.agents[1].wait_for_others(0.0) is None

    job.agents[0].finish()
    job.agents[2].leave("it was lost, too")

    assert job.agents[1].wait_for_others(SECONDS) is True


def test_others_that_were_all_lost_are_no_success(hosts):
    job = hosts(2)
    job.agents[0].leave("it was lost")
    job.agents[1].leave("it was lost, too")

    assert job.agents[0].wait_for_others(SECONDS) is False


def test_a_process_without_the_secret_is_refused(hosts):
    job = hosts(2)

    async def connect(secret, me, host):
        return await dial(f"127.0.0.{host + 1}", job.port, me, host, secret)

    with pytest.raises((FrameError, EOFError, OSError)):
        asyncio.run(connect(b"another secret", 1, 0))
    with pytest.raises((FrameError, EOFError, OSError)):
        asyncio.run(connect(None, 1, 0))


def test_a_lost_host_does_not_come_back(hosts):
    """It has the secret, and connects a second time under its number."""
    job = hosts(3)
    every = ranks(job)
    job.agents[2].close()
    re_form(every[:2])

    async def come_back():
        link = await dial("127.0.0.1", job.port, 2, 0, SECRET)
        link.send({"kind": "ready", "generation": 1, "members": [0, 1, 2], "culprit": None})
        received = await link.receive()
        await link.close()
        return received

    assert asyncio.run(come_back()) is None
    assert (0, 1) == job.agents[0].members


def test_a_rank_whose_launcher_has_ended_raises_an_error(hosts):
    job = hosts(2)
    rank = Rank(job, 0)
    waiting = rank.re_form()
    job.agents[0].close()

    with pytest.raises(ElasticError) as caught:
        waiting.result(SECONDS)

    assert "launcher_lost" == caught.value.kind


def test_a_port_in_use_is_named(hosts, tmp_path):
    job = hosts(1)
    again = ElasticAgent(job.places[0], print)

    with pytest.raises(LaunchError) as caught:
        again.start()
    assert ("conflict", ("SMDIST_MASTER_PORT",)) == (caught.value.kind, caught.value.about)
    again.close()
