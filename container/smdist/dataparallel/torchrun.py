# SPDX-License-Identifier: Apache-2.0
"""Program that runs torchrun with a store that listens at one address of its host alone.

    python -m smdist.dataparallel.torchrun --rdzv-backend smdist --rdzv-endpoint 10.0.0.1:7777 \\
        --rdzv-conf rank=0,timeout=600,listen=10.0.0.1 ... -- program

torchrun itself, with its static rendezvous, makes a TCPStore that listens at all addresses. This
program registers a rendezvous "smdist" with torchrun, which differs only in that. All other
arguments are torchrun's. The launcher runs this program; it is not meant for users.
"""

from __future__ import annotations

import errno
import socket
import sys
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import main

from sagemaker_dist.errors import LaunchError

BACKEND: Final = "smdist"


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

    def get_backend(self) -> str:
        """Return the name of this rendezvous for --rdzv-backend."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Start the store if this is the first host, and wait for the other hosts.

        Raises:
            LaunchError: The port is in use or cannot be used.
        """
        if self.rank == 0 and self._store is None and self._listen:
            self._store = _store(self)
        return super().next_rendezvous()


def _store(rendezvous: OneAddressRendezvous) -> TCPStore:
    listener = _listener(rendezvous._listen, rendezvous.master_port)
    timeout: timedelta = rendezvous.timeout
    return TCPStore(
        rendezvous.master_addr,
        rendezvous.master_port,
        rendezvous.world_size,
        is_master=True,
        timeout=timeout,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


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
    sys.exit(main())
