# SPDX-License-Identifier: Apache-2.0
"""Checks and encryption of what hosts send to each other, through torch.distributed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError, parts_of
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.connect import connect
from smdist.dataparallel.rendezvous.protection import log_protection
from smdist.dataparallel.rendezvous.store import OwnStore

SETTINGS = {"LANES": "2", "CHUNK_BYTES": "65536", "ONE_SHOT_BYTES": "4096",
            "SINGLE_OWNER_BYTES": "0", "ARRIVING_BYTES": "0"}  # fmt: skip
PROTECTIONS = [
    {"INTEGRITY": "crc32c"},
    {"INTEGRITY": "mac"},
    {"ENCRYPT": "1"},
    {"INTEGRITY": "mac", "ENCRYPT": "1"},
]


def every_collective(rank, size):
    """What each collective gives, for short and long tensors."""
    generator = torch.Generator().manual_seed(rank)
    results = []
    for length in (1, 1_000, 400_001):
        mine = torch.randn(length, generator=generator) * 10.0 ** (rank - 1)
        total, root = mine.clone(), mine.clone()
        dist.all_reduce(total)
        dist.broadcast(root, 1)
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine)
        many = mine.repeat(size)
        scattered, exchanged = torch.empty_like(mine), torch.empty_like(many)
        dist.reduce_scatter_tensor(scattered, many)
        dist.all_to_all_single(exchanged, many)
        received = torch.empty_like(mine)
        sends = dist.isend(mine, (rank + 1) % size)
        dist.recv(received, (rank - 1) % size)
        sends.wait()
        results += [total, root, *gathered, scattered, exchanged, received]
    dist.barrier()
    return results


def test_every_protection_gives_the_same_bits(world):
    """Two ranks on one of three hosts: they share memory, and the others have connections."""
    expected = world.run(every_collective, hosts="aabc", tuning=SETTINGS)
    for protection in PROTECTIONS:
        results = world.run(every_collective, hosts="aabc", tuning={**SETTINGS, **protection})
        for ours, theirs in zip(expected, results, strict=True):
            assert all(map(torch.equal, ours, theirs))


def first_of_a_sum(rank, size):
    tensor = torch.full((100_000,), 1234.5) if rank else torch.zeros(100_000)
    dist.all_reduce(tensor)
    return tensor[0].item()


def test_measured_settings_work_with_encryption(world):
    """The measurement at the start adds lanes to a running engine."""
    results = world.run(first_of_a_sum, size=2, hosts="ab", tuning={"ENCRYPT": "1"})

    assert [1234.5] * 2 == results


def differ(rank, size):
    """The fault of ranks with different options."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    unlike = {"SMDIST_INTEGRITY": "mac", "SMDIST_ENCRYPT": "1"} if rank else {}
    with mock.patch.dict(os.environ, unlike):
        try:
            dist.init_process_group("smdist", store=store, rank=rank, world_size=size)
        except OptionError as error:
            return [(part.about, part.kind) for part in parts_of(error)]
    return []


def test_ranks_with_different_protection_all_refuse(world):
    expected = [(("SMDIST_INTEGRITY",), "conflict"), (("SMDIST_ENCRYPT",), "conflict")]

    assert [expected] * 2 == world.run(differ, size=2, hosts="ab", tuning=SETTINGS)


@pytest.mark.parametrize(
    ("options", "about"),
    [({"encrypt": True}, "SMDIST_ENCRYPT"), ({"integrity": "mac"}, "SMDIST_INTEGRITY")],
)
def test_a_build_without_openssl_refuses(options, about):
    """Before anything is connected; a checksum needs no OpenSSL."""
    module = mock.Mock(has_openssl=False)
    config = RankConfig(host_label="algo-1", **options)
    with pytest.raises(OptionError) as caught:
        connect(OwnStore(), 0, 1, config, module)

    assert ((about,), "missing") == (caught.value.about, caught.value.kind)
    module.Engine.assert_not_called()


@pytest.mark.parametrize(
    ("options", "hosts", "parts"),
    [
        ({}, [0, 0], []),
        ({}, [0, 1], ["data between hosts is not encrypted, and checked by TCP alone"]),
        ({"integrity": "crc32c"}, [0, 1], ["data between hosts is checked by CRC-32C"]),
        (
            {"integrity": "mac", "encrypt": True},
            [0, 0, 1],
            ["data between hosts is encrypted with TLS 1.3 and checked by message auth"],
        ),
        ({"encrypt": True}, [0, 0], ["no data is encrypted", "all ranks are on one host"]),
    ],
)
def test_the_log_says_how_data_is_protected(capsys, options, hosts, parts):
    log_protection(RankConfig(host_label="algo-1", **options), hosts)

    logged = capsys.readouterr().err
    assert bool(parts) == bool(logged)
    assert all(part in logged for part in parts)


BESIDE_OTHERS = """
import hashlib, ssl, sys
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
def use():
    sealed = AESGCM(bytes(32)).encrypt(bytes(12), b"abc", None)
    assert AESGCM(bytes(32)).decrypt(bytes(12), sealed, None) == b"abc"
    assert hashlib.sha256(b"abc").hexdigest().startswith("ba7816bf")
    context = ssl.create_default_context()
    assert context.minimum_version and len(context.get_ciphers()) > 3
    return ssl.OPENSSL_VERSION
if sys.argv[1] == "before":
    version = use()
import torch
from concurrent.futures import ThreadPoolExecutor
from smdist.dataparallel.torch import _C
hosts = [0, 1]
engines = [
    _C.Engine(
        rank, 2, "127.0.0.1", [], hosts, b"secret", bytes(16), 0, None, None, 10.0, "mac", True
    )
    for rank in hosts
]
for engine in engines:
    engine.join([each.endpoint() for each in engines])
with ThreadPoolExecutor(2) as pool:  # measured all-reduces over TLS
    found = pool.map(lambda rank: engines[rank].probe(rank, hosts, _C.Fixed(), 20.0), hosts)
    assert all(each.bandwidth > 0 for each in found)
version = use() if sys.argv[1] == "after" else version
assert version == use()
for engine in engines:
    engine.shutdown()
print(version)
"""


@pytest.mark.parametrize("order", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_our_openssl_gets_on_with_that_of_python(order):
    """Python's ssl, hashlib and cryptography keep their own, whichever is loaded first."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_OTHERS, order], capture_output=True, text=True, timeout=60
    )

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_no_symbol_of_openssl_is_shared(framework):
    """The compiled modules neither offer one to other libraries nor take one from them."""
    import smdist.dataparallel

    (folder,) = smdist.dataparallel.__path__
    (binary,) = Path(folder, framework).glob("_C*.so")
    listed = subprocess.run(
        [shutil.which("nm") or "nm", "-D", binary], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    prefixes = ("SSL_", "EVP_", "BIO_", "CRYPTO_", "OPENSSL_", "ERR_", "X509_", "HMAC_", "AES_")

    assert names
    assert [] == [name for name in names if name.startswith(prefixes)]
