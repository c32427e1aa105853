# SPDX-License-Identifier: Apache-2.0
"""The Docker network of one job, in which every host has a fixed address.

The file /etc/hosts of each container has the names and addresses of all hosts, as on SageMaker.
Docker's DNS is not used, because it removes a container's name when the container ends. The other
hosts would then wait for this name instead of reporting a lost connection.
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
    """A bridge network of Docker for one job.

    Attributes:
        name: Name of the network.
        addresses: Host's name -> its IPv4 address.
    """

    name: str
    addresses: dict[str, str]

    @classmethod
    def create(cls, client: DockerClient, job: LocalJob, folder: Path) -> JobNetwork:
        """Create the network of a job, and return it; its label is the path of the job's folder.

        Raises:
            docker.errors.APIError: The Docker engine refuses.
            SetupError: The engine's networks are too small for the job.
        """
        subnet = _create_with_subnet(client, job, folder)
        places = ip_network(subnet).hosts()
        next(places)  # the gateway's address
        names = [host.address for host in job.hosts]
        addresses = {name: str(place) for name, place in zip(names, places, strict=False)}
        if len(addresses) < len(names):
            raise SetupError(
                f"instance_count is {len(names)}",
                f"the Docker engine's networks have {len(addresses)} addresses ({subnet})",
                "Pass a smaller instance_count, or enlarge the engine's default-address-pools",
                "instance_count",
            )
        return cls(name=network_name(job), addresses=addresses)

    def arguments(self, client: DockerClient, host: LocalHost) -> dict[str, Any]:
        """Return the arguments of `containers.create` that connect a host to this network."""
        endpoint = client.api.create_endpoint_config(
            aliases=[host.address], ipv4_address=self.addresses[host.address]
        )
        return {
            "network": self.name,
            "networking_config": {self.name: endpoint},
            "extra_hosts": self.addresses,
        }


def _create_with_subnet(client: DockerClient, job: LocalJob, folder: Path) -> str:
    """Create the network of a job with an explicit subnet, and return the subnet, as CIDR.

    Docker allows fixed addresses only in such a network. The engine chooses a free subnet for a
    first network, which is removed; the second network gets that subnet. If another network takes
    the subnet in between, both steps are repeated.
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
    raise AssertionError("internal error: the creation of a Docker network ended without a result")


def _create(client: DockerClient, job: LocalJob, folder: Path, **more: Any) -> Network:
    return client.networks.create(
        network_name(job),
        driver="bridge",
        check_duplicate=True,  # engines before 25 would create two networks of one name
        internal=job.isolated,
        labels={FOLDER_LABEL: str(folder)},
        **more,
    )
