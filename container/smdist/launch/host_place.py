# SPDX-License-Identifier: Apache-2.0
"""Place of this host in the job: its configuration, its hardware, and the hosts beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sagemaker_dist.contract import World, host_faults
from sagemaker_dist.contract.model_parallel_ranks import split_faults
from sagemaker_dist.errors import raise_all
from smdist.config import RuntimeConfig, read_runtime_config
from smdist.launch.launch_request import resolve_request
from smdist.launch.machine import HostResources, inspect_machine

_LAST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """Place of this host in the job, and its hardware.

    Attributes:
        config: Configuration of this host's launcher.
        machine: Numbers of CPUs and GPUs of this host.
        world: The hosts that train together, and the number of ranks on each.
    """

    config: RuntimeConfig
    machine: HostResources
    world: World

    @property
    def label(self) -> str:
        """Return the name of this host in messages."""
        return self.world.label(self.config.resources.current_host)


def read_place() -> HostPlace:
    """Return the place of this host, from SageMaker's files and the environment.

    Raises:
        LaunchError: A file is unreadable or contradicts itself.
        DistError: The job's options are wrong, or do not fit its hosts.
    """
    config = resolve_request(read_runtime_config())
    machine = inspect_machine(config.inherited)
    processes = 1
    if config.options:
        raise_all(host_faults(config.options, len(config.resources.hosts)))
        processes = config.options.processes_per_host or machine.num_gpus or 1
    world = World(hosts=config.resources.hosts, processes_per_host=processes)
    if config.model:
        raise_all(split_faults(config.model, world_size=world.size, num_hosts=len(world.hosts)))
    return HostPlace(config=config, machine=machine, world=world)


def launcher_port(port: int, num_hosts: int, number: int) -> int:
    """Return a port at which launchers listen for other launchers.

    These ports follow those of TensorFlow's servers, which use up to three for each host after the
    rendezvous port. If there are not as many ports, the result is before the rendezvous port, and
    before the port beside it, at which ranks meet under torchrun.

    Args:
        port: The rendezvous port.
        num_hosts: Number of hosts of the job.
        number: 1 for the coordinator of restarts and 2 for the watch over launchers, both on the
            first host; 3 for the agents of an elastic job, on every host.
    """
    after = port + 3 * num_hosts + number
    return after if after <= _LAST_PORT else port - 1 - number
