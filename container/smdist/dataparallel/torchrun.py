# SPDX-License-Identifier: Apache-2.0
"""Program that runs torchrun with a store that listens at one address of its host alone.

    python -m smdist.dataparallel.torchrun --rdzv-backend smdist --rdzv-endpoint 10.0.0.1:7777 \\
        --rdzv-conf rank=0,timeout=600,hosts=algo-1|algo-2,ranks_per_host=8,listen=10.0.0.1 \\
        ... -- program

torchrun itself, with its static rendezvous, makes a TCPStore that listens at all addresses, and
does not say which hosts are missing. This program registers a rendezvous "smdist" with torchrun,
which differs only in that. All other arguments are torchrun's. The launcher runs this program;
users do not. In its working directory it leaves a `starter_report` for the launcher.
"""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistNetworkError
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import main

from sagemaker_dist.errors import DistError, LaunchError
from smdist.dataparallel.host_arrivals import HostArrivals
from smdist.dataparallel.reconnecting_store import ReconnectingStore
from smdist.dataparallel.starter_report import StarterReport, write_error, write_report

BACKEND: Final = "smdist"
_ATTEMPT_SECONDS: Final = 5.0  # for one attempt to connect to the store again
_AGAIN_SECONDS: Final = 60.0  # for all of them: longer than an interruption that ends no job


class OneAddressRendezvous(StaticTCPRendezvous):
    """torchrun's static rendezvous, with a store that listens at `listen` alone.

    If `listen` is "", the store listens at all addresses of the first host.
    """

    def __init__(self, host: str, port: int, parameters: RendezvousParameters) -> None:
        super().__init__(
            host,
            port,
            int(parameters.get("rank")),
            parameters.max_nodes,
            parameters.run_id,
            int(parameters.get("timeout")),
        )
        self._listen = str(parameters.get("listen", ""))
        names = str(parameters.get("hosts", "")).split("|")
        numbered = [f"host {number}" for number in range(parameters.max_nodes)]
        self._arrivals = HostArrivals(
            hosts=names if len(names) == len(numbered) else numbered,
            number=self.rank,
            ranks_per_host=int(parameters.get("ranks_per_host", 1)),
            timeout_seconds=self.timeout.total_seconds(),
            note=_note if "hosts" in parameters.config else lambda _: None,
        )

    def get_backend(self) -> str:
        """Return the name of this rendezvous for --rdzv-backend."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Start the store if this is the first host, and wait for the other hosts.

        Raises:
            LaunchError: The port cannot be used, or hosts are missing after the start timeout.
        """
        if self._store is None:
            self._store = self._join()
            self._arrivals.wait(PrefixStore(f"{self.run_id}/arrivals", self._store))
        return super().next_rendezvous()

    def _join(self) -> Store:
        """Start the store on the first host; connect to it on the other hosts."""
        if self.rank == 0:
            own = _listener(self._listen, self.master_port) if self._listen else None
            return self._tcp_store(own.detach() if own else None)
        self._arrivals.note(self._arrivals.hosts[:1])
        try:
            return ReconnectingStore(self._tcp_store, self._tcp_store_again)
        except RuntimeError as error:
            raise self._arrivals.absent([0]) from error

    def _tcp_store_again(self) -> TCPStore:
        """Connect to the store again, as long as its host does not answer that it has ended.

        Raises:
            DistNetworkError: The store has ended, or does not answer within 60 s.
        """
        deadline = time.monotonic() + _AGAIN_SECONDS
        while True:
            if self._has_ended():
                raise DistNetworkError(f"no store listens at {self.master_addr}:{self.master_port}")
            try:
                return self._tcp_store(seconds=_ATTEMPT_SECONDS)
            except DistNetworkError:
                if time.monotonic() > deadline:
                    raise

    def _has_ended(self) -> bool:
        try:
            place = (self.master_addr, self.master_port)
            socket.create_connection(place, timeout=_ATTEMPT_SECONDS).close()
        except ConnectionRefusedError:
            return True
        except OSError:  # no answer: the network is interrupted
            return False
        return False

    def _tcp_store(self, listener: int | None = None, *, seconds: float | None = None) -> TCPStore:
        return TCPStore(
            self.master_addr,
            self.master_port,
            self.world_size,
            is_master=self.rank == 0,
            timeout=self.timeout if seconds is None else timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener,
        )


def _note(missing: Sequence[str]) -> None:
    write_report(Path(), StarterReport(missing=tuple(missing)))


def _listener(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port), backlog=socket.SOMAXCONN)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        raise LaunchError(
            f"the ranks cannot use port {port} of {address}",
            "another process listens on it" if is_taken else error.strerror or str(error),
            "Set the environment variable SMDIST_MASTER_PORT to a free port above 1023, with the"
            " same value on all hosts of the job",
            about="SMDIST_MASTER_PORT",
            kind="conflict",
        ) from error


def _create(parameters: RendezvousParameters) -> OneAddressRendezvous:
    return OneAddressRendezvous(*parse_rendezvous_endpoint(parameters.endpoint, -1), parameters)


if __name__ == "__main__":
    rendezvous_handler_registry.register(BACKEND, _create)
    try:
        sys.exit(main())
    except DistError as error:
        write_error(Path(), error)
        raise
