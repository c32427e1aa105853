# SPDX-License-Identifier: Apache-2.0
"""Checks that the number of a job's ranks is divisible by the parallel degrees of SMP.

Rules of version 1 (Amazon SageMaker Developer Guide, Ranking Mechanism and Sharded Data
Parallelism, read 2026-11-21):

* The world size is pipeline degree x tensor degree x reduced data parallel degree.
* The data parallel degree is world size / pipeline degree, and must be a multiple of
  `sharded_data_parallel_degree`.

Rules of version 2 (Developer Guide, pages of the core features of SMP v2, read 2026-11-21):

* The number of GPUs is a multiple of each degree.
* Each rank belongs to one tensor parallel group. The ranks of a sharding group, or of a context
  parallel group, belong to different tensor parallel groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Final

from sagemaker_dist.contract.smp.keys import V1, V2
from sagemaker_dist.errors import OptionError

# Degrees whose product must divide the world size, and the role of that many ranks in messages.
_V1: Final = (
    (("partitions", "pipeline_parallel_degree", "tensor_parallel_degree"), "hold a whole model"),
    (
        ("partitions", "pipeline_parallel_degree", "sharded_data_parallel_degree"),
        "hold a whole sharded model",
    ),
)
_V2: Final = (
    (("tensor_parallel_degree", "hybrid_shard_degree"), "hold a whole sharded model"),
    (("tensor_parallel_degree", "context_parallel_degree"), "work on the same sequences"),
    (("expert_parallel_degree",), "hold all experts"),
)
_GROUPS: Final = {1: _V1, 2: _V2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Number of ranks and hosts of a job.

    Attributes:
        size: Ranks on all hosts together.
        num_hosts: Hosts, or None if unknown.
    """

    size: int
    num_hosts: int | None = None

    @property
    def processes_per_host(self) -> int:
        """Return the number of ranks on each host; `size` if `num_hosts` is None."""
        return self.size // (self.num_hosts or 1)

    def __str__(self) -> str:
        if self.num_hosts is None:
            return f"a world of {self.size}"
        hosts = f"{self.num_hosts} host{'s' * (self.num_hosts > 1)}"
        processes = f"{self.processes_per_host} process{'es' * (self.processes_per_host > 1)}"
        return f"a world of {self.size} ({hosts} x {processes})"


def smp_world_faults(
    parameters: Mapping[str, Any],
    *,
    version: int | None,
    num_hosts: int | None,
    processes_per_host: int | None,
) -> Iterator[OptionError]:
    """Yield a fault for each product of parallel degrees that does not divide the number of ranks.

    Nothing is checked if the version, the hosts or the ranks per host are None (unknown). Invalid
    degrees, such as -1, are skipped, because `smp_faults` reports them.

    Args:
        parameters: Parameters of SMP, by key.
        version: Version of SMP, 1 or 2.
        num_hosts: Hosts of the job.
        processes_per_host: Ranks on each host.
    """
    if version is None or not num_hosts or not processes_per_host:
        return
    world = Ranks(size=num_hosts * processes_per_host, num_hosts=num_hosts)
    reported: list[set[str]] = []
    for names, together in _GROUPS[version]:
        degrees = _degrees(parameters, names)
        if world.size % prod(degrees.values()) and not any(
            set(degrees) <= seen for seen in reported
        ):
            reported.append(set(degrees))
            yield division_fault(world, degrees, together)


def _degrees(parameters: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    """Return the values of the parameters `names` that are valid degrees above 1, by name.

    `partitions` and `pipeline_parallel_degree` mean the same. If both are given, only `partitions`
    is returned.
    """
    keys = {**V1, **V2}
    found = {
        name: parameters[name]
        for name in names
        if keys[name].is_valid(parameters.get(name)) and parameters[name] > 1
    }
    if "partitions" in found:
        found.pop("pipeline_parallel_degree", None)
    return found


def division_fault(world: Ranks, degrees: Mapping[str, int], together: str) -> OptionError:
    """Return the error for a number of ranks that is not a multiple of the product of `degrees`.

    Args:
        world: Ranks of the job.
        degrees: Degrees by name, whose product is the divisor.
        together: Words of the message that follow "4 ranks" and state what this many ranks do
            together, such as "hold a whole model".
    """
    product = prod(degrees.values())
    values = " and ".join(f"{name}={degree}" for name, degree in degrees.items())
    factors = " x ".join(map(str, degrees.values()))
    ranks = factors if len(degrees) == 1 else f"{factors} = {product}"
    return OptionError(
        f"{world} has {values}",
        f"{ranks} ranks {together}, so the number of ranks ({world.size}) must be a multiple of"
        f" {product}",
        f"Use {_hosts(world, product)}, or {_divisors(world.size, product, degrees)}",
        about=next(iter(degrees)),
        kind="indivisible",
    )


def _hosts(world: Ranks, product: int) -> str:
    """Return text such as "2 or 4 hosts", which proposes other numbers of hosts for the job.

    With these hosts, the number of ranks is a multiple of `product`, the product of the degrees.
    The numbers nearest to the hosts of `world` are proposed. If the number of hosts is unknown, the
    text proposes numbers of ranks, such as "8 or 16 ranks".
    """
    if world.num_hosts is None:
        step, number, unit = product, world.size, "ranks"
    else:
        step, number = product // gcd(product, world.processes_per_host), world.num_hosts
        unit = "hosts"
    below = number // step * step
    return f"{below} or {below + step} {unit}" if below else f"{step} {unit}"


def _divisors(size: int, product: int, degrees: Mapping[str, int]) -> str:
    """Return text that proposes values for the degrees, such as "pipeline_parallel_degree=2 or 4".

    The values are the divisors of `size`, the number of ranks, just below and just above `product`,
    the product of the degrees. For several degrees, the text is "a product of 2 or 4".
    """
    valid = [number for number in range(1, size + 1) if size % number == 0]
    below = [number for number in valid if number < product][-1:]
    above = [number for number in valid if number > product][:1]
    nearest = " or ".join(map(str, below + above))
    return f"{next(iter(degrees))}={nearest}" if len(degrees) == 1 else f"a product of {nearest}"
