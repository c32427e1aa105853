# SPDX-License-Identifier: Apache-2.0
"""The network of one job, in which every host gets its address before any is started.

The engine's own DNS drops a container's name when it ends, and other hosts would then wait for it
in vain. On SageMaker the names stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

from sagemaker_dist.errors import SetupError
from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.runners.local.containers.container_arguments import FOLDER_LABEL, network_name

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.networks import Network

_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNetwork:
    """A bridge network for one job.

    Attributes:
        addresses: IPv4 addresses by the host's name.
    """

    name: str
    addresses: dict[str, str]

    @classmethod
    def create(cls, client: DockerClient, job: LocalJob, folder: Path) -> JobNetwork:
        """Create the network.

        Raises:
            docker.errors.APIError: The engine refuses.
            SetupError: The engine's networks are too small for the job.
        """
        subnet = _create_with_subnet(client, job, folder)
        places = ip_network(subnet).hosts()
        next(places)  # the gateway's
        names = [host.address for host in job.hosts]
        addresses = {name: str(place) for name, place in zip(names, places, strict=False)}
        if len(addresses) < len(names):
            raise SetupError(
                f"instance_count is {len(names)}",
                f"the engine's networks have {len(addresses)} addresses: this one is {subnet}",
                "Pass a smaller instance_count, or widen default-address-pools of the engine",
            )
        return cls(name=network_name(job), addresses=addresses)

    def arguments(self, client: DockerClient, host: LocalHost) -> dict[str, Any]:
        """Return the arguments of `client.containers.create` for a host in this network."""
        endpoint = client.api.create_endpoint_config(
            aliases=[host.address], ipv4_address=self.addresses[host.address]
        )
        return {
            "network": self.name,
            "networking_config": {self.name: endpoint},
            "extra_hosts": self.addresses,
        }


def _create_with_subnet(client: DockerClient, job: LocalJob, folder: Path) -> str:
    """Create the network with an explicit subnet, which fixed addresses need: first find a free
    one.

    Another network may take the subnet in between; then another one is tried.
    """
    for attempt in range(_TRIES):
        probe = _create(client, job, folder)
        probe.reload()
        subnet: str = probe.attrs["IPAM"]["Config"][0]["Subnet"]
        probe.remove()
        try:
            _create(client, job, folder, ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)]))
        except APIError as error:
            if "overlaps" not in str(error) or attempt == _TRIES - 1:
                raise
        else:
            return subnet
    raise AssertionError("the last attempt returns or raises")


def _create(client: DockerClient, job: LocalJob, folder: Path, **more: Any) -> Network:
    return client.networks.create(
        network_name(job),
        driver="bridge",
        check_duplicate=True,  # engines before 25 would create a second one with that name
        internal=job.isolated,
        labels={FOLDER_LABEL: str(folder)},
        **more,
    )
