# SPDX-License-Identifier: Apache-2.0
"""Hosts of a job: their number, their ranks and the facts about their instance type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sagemaker_dist.catalog import Instance, training_instances
from sagemaker_dist.contract import Distribution
from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.jobs.job_checks import distribution_of_job
from sagemaker_dist.planning.split_checks import ranks_per_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Hosts of one instance type in a job.

    Attributes:
        type: Instance type, such as "ml.p4d.24xlarge" or "local_process".
        count: Number of hosts.
        group: Name of the hosts' instance group; None for a job without groups.
        ranks: Number of ranks on each host; 0 for hosts without ranks. None if the number is known
            only on the host, which starts one rank per GPU.
        instance: Facts about the instance type; None for a local job.
    """

    type: str
    count: int
    group: str | None
    ranks: int | None
    instance: Instance | None

    def document(self) -> dict[str, Any]:
        """Return the fields as a dict that can be written as JSON."""
        return {
            "group": self.group,
            "instance_type": self.type,
            "instance_count": self.count,
            "ranks_per_host": self.ranks,
            "instance": None if self.instance is None else asdict(self.instance),
        }

    def text(self) -> str:
        """Return the number of hosts and ranks as text, such as "2 hosts x 8 ranks"."""
        hosts = counted(self.count, "host")
        if self.ranks is None:
            return f"{hosts} x a rank per GPU, or one"
        return f"{hosts} x {counted(self.ranks, 'rank')}" if self.ranks else f"{hosts}, no ranks"


def hosts_of(job: TrainingJob) -> list[Hosts]:
    """Return the hosts of a job, one entry per instance type and group."""
    distribution = distribution_of_job(job)
    if job.instance_groups is None:
        kind = str(job.instance_type)
        return [_hosts(distribution, kind, job.instance_count or 1, None)]
    return [
        _hosts(distribution, each.instance_type, each.instance_count, each.instance_group_name)
        for each in job.instance_groups
    ]


def total_ranks(hosts: Sequence[Hosts]) -> int | None:
    """Return the number of ranks in the job, or None if it is known only on the hosts."""
    counts = [None if each.ranks is None else each.count * each.ranks for each in hosts]
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None


def counted(number: int, what: str) -> str:
    """Return a number with the noun `what`, such as "1 host" or "2 hosts"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _hosts(distribution: Distribution, kind: str, count: int, group: str | None) -> Hosts:
    instance = training_instances().get(kind)
    trains = not distribution.group_names or group in distribution.group_names
    ranks = ranks_per_host(distribution, kind) if distribution.is_launched and trains else 0
    return Hosts(type=kind, count=count, group=group, ranks=ranks, instance=instance)
