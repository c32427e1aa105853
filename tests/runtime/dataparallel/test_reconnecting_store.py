# SPDX-License-Identifier: Apache-2.0
"""Store of torchrun's agents, whose connection is reset while it is idle."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psutil
import pytest
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, TCPStore
from torch.distributed.elastic.utils.store import barrier, synchronize

from smdist.dataparallel.reconnecting_store import ReconnectingStore
from smdist.dataparallel.torchrun import OneAddressRendezvous

TIMEOUT = timedelta(seconds=30)


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


@pytest.fixture
def stores(server):
    """Yield two prefixed stores, as the agents of two hosts use them."""

    def connect():
        return TCPStore("127.0.0.1", server.port, is_master=False, timeout=TIMEOUT)

    inner = [ReconnectingStore(connect) for _ in range(2)]
    yield [PrefixStore("run", each) for each in inner]
    del inner  # torch's PrefixStore keeps no Python object alive


def reset_connections(port):
    """Shut down all connections of this process to a port."""
    for each in psutil.Process().net_connections("tcp4"):
        if each.raddr and each.raddr.port == port:
            with socket.socket(fileno=os.dup(each.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def test_agents_whose_connections_were_reset_meet_at_the_end(server, stores):
    """Without a second connection the others would wait until the barrier's timeout."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda rank: synchronize(stores[rank], b"%d" % rank, rank, 2, "start", 20), range(2)
        )
        assert [[b"0", b"1"]] * 2 == list(found)
        reset_connections(server.port)
        list(pool.map(lambda store: barrier(store, 2, "end", 20), stores))

    assert server.check(["run/end/last_member"])


def test_every_request_connects_again(server, stores):
    store, _ = stores
    requests = (
        lambda: store.set("a", "1"),
        lambda: store.get("a"),
        lambda: store.add("n", 2),
        lambda: store.check(["a"]),
        lambda: store.wait(["a"]),
        lambda: store.multi_set(["b", "c"], ["2", "3"]),
        lambda: store.multi_get(["b", "c"]),
    )
    found = []
    for request in requests:
        reset_connections(server.port)
        found.append(request())

    assert [None, b"1", 2, True, None, None, [b"2", b"3"]] == found


def test_a_key_that_nobody_sets_ends_at_the_timeout(stores):
    store, _ = stores
    store.set_timeout(timedelta(milliseconds=50))

    with pytest.raises(DistStoreError):
        store.get("missing")
    with pytest.raises(DistStoreError):
        store.wait(["missing"])


def test_a_store_that_has_ended_is_not_awaited(server):
    """As at the end of a job, where the first host may have left before the others ask again."""
    (rendezvous := OneAddressRendezvous.__new__(OneAddressRendezvous)).rank = 1
    rendezvous.master_addr, rendezvous.master_port = "127.0.0.1", server.port
    rendezvous.world_size, rendezvous.timeout = 2, TIMEOUT
    again = rendezvous._tcp_store_again()
    again.set("a", "1")

    assert b"1" == server.get("a")

    with socket.create_server(("127.0.0.1", 0)) as other:
        rendezvous.master_port = other.getsockname()[1]  # closed at the end of this block
    begin = time.monotonic()
    with pytest.raises(DistNetworkError):
        rendezvous._tcp_store_again()
    assert time.monotonic() - begin < 5
