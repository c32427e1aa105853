# SPDX-License-Identifier: Apache-2.0
"""The store of torchrun listens at one address of the first host."""

import socket
from datetime import timedelta

import pytest
from error_fields import fields_of
from ports import free_port
from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters

from sagemaker_dist.contract import World
from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.torchrun import BACKEND, OneAddressRendezvous
from smdist.launch.host_resolution import listening_address


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["127.0.0.1", "127.0.0.2"], "127.0.0.1"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1"),
        (["127.0.1.1", "10.0.0.2"], ""),  # /etc/hosts of the first host: the ranks say so
    ],
)
def test_the_first_host_listens_at_its_own_address(addresses, expected):
    hosts = ("algo-1", "algo-2")
    world = World(hosts=hosts, processes_per_host=1)

    assert expected == listening_address(world, dict(zip(hosts, addresses, strict=True)))


def rendezvous_at(port, **options):
    parameters = RendezvousParameters(
        BACKEND, f"127.0.0.1:{port}", "none", 1, 1, rank="0", timeout="20", **options
    )
    return OneAddressRendezvous("127.0.0.1", port, parameters)


def client(address, port):
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=1))


@pytest.mark.parametrize(("options", "is_open"), [({"listen": "127.0.0.1"}, False), ({}, True)])
def test_another_address_of_the_machine_is_closed(options, is_open):
    """Without `listen`, the store is torchrun's own, which is open at all addresses."""
    port = free_port()
    found = rendezvous_at(port, **options).next_rendezvous()
    found.store.set("key", "value")

    assert b"value" == client("127.0.0.1", port).get("none/key")
    assert (0, 1, port) == (found.rank, found.world_size, found.bootstrap_store_info.master_port)
    if is_open:
        client("127.0.0.2", port)
    else:
        with pytest.raises(DistNetworkError):
            client("127.0.0.2", port)


def test_a_port_that_was_taken_in_the_meantime_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(LaunchError) as caught:
        rendezvous_at(taken.getsockname()[1], listen="127.0.0.1").next_rendezvous()

    assert [("SMDIST_MASTER_PORT", "conflict")] == fields_of(caught.value)
