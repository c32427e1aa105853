# SPDX-License-Identifier: Apache-2.0
"""What may be asked of a job: frozen options that check themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from sagemaker_dist.contract.named import Named
from sagemaker_dist.contract.ranges import WEIGHTS, MiB, range_faults
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Named):
    """Replicate the model on every rank and average gradients each step.

    Attributes:
        processes_per_host: Ranks started on each host, 1 to 1024. The default,
            None, starts one rank per GPU, or one on a host without GPUs.
        fusion_bytes: Gradients are packed into buffers of this many bytes
            before each all-reduce, 1 MiB to 4 GiB. It acts through
            `smdist.dataparallel.torch.DistributedDataParallel`. Default 25 MiB.
        timeout_seconds: A collective that takes longer ends with an error on
            every rank, 1 to 86,400. A timeout that the script itself gives to
            `init_process_group` wins. Default 1,800, as in torch.
        start_timeout_seconds: How long the hosts wait for each other at the
            start, 1 to 86,400. Default 600.
        lanes: Connections between two ranks of different hosts, 1 to 16. Several
            fill a network that is faster than one TCP flow may be: 5 Gbit/s, 10
            in a cluster placement group (AWS, Amazon EC2 instance network
            bandwidth, read 2026-11-21). Default None: measured at the start of
            the job.
        chunk_bytes: Sums are made and sent on in pieces of this many bytes, 64
            KiB to 16 MiB and a multiple of 64: small ones overlap adding with
            sending, big ones cost fewer messages. Default None: measured at the
            start of the job.
        one_shot_bytes: An all-reduce of at most so many bytes takes one step
            instead of two: every rank sends all of it to every other and sums
            by itself. 0 to 1 MiB; 0 is never. Default None: measured at the
            start of the job.
        single_owner_bytes: An all-reduce of at most so many bytes, and of more
            than `one_shot_bytes`, is summed whole by one rank, a different one
            in turn, which takes fewer messages than shards. 0 to 1 MiB; 0 is
            never. Default None: measured at the start of the job.
        arriving_bytes: How many bytes may be on their way to a host from all
            others, so that they do not crowd each other out at a switch with
            short queues. 0 to 64 MiB; 0 leaves it to the kernel. Default None:
            measured at the start of the job.
        shard_weights: For hosts with unlike networks: host i sums this share of
            every buffer. One integer per host in numeric order (algo-2 before
            algo-10), each 0 to 65,535 and one at least above 0; a list becomes
            a tuple. Default None: equal shares.

    Raises:
        OptionError: A value is outside its range; all faults are reported.
    """

    processes_per_host: int | None = None
    fusion_bytes: int = 25 * MiB
    timeout_seconds: int = 1800
    start_timeout_seconds: int = 600
    lanes: int | None = None
    chunk_bytes: int | None = None
    one_shot_bytes: int | None = None
    single_owner_bytes: int | None = None
    arriving_bytes: int | None = None
    shard_weights: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        weights: Any = self.shard_weights
        if isinstance(weights, list):  # as JSON has it
            object.__setattr__(self, WEIGHTS, tuple(weights))
        raise_all(_faults(self))

    def distribution(self) -> dict[str, Any]:
        """The same as the dict that `distribution=` takes."""
        return {"smdist": {"dataparallel": asdict(self)}}


def host_faults(options: DataParallel, num_hosts: int) -> Iterator[OptionError]:
    """What is wrong with the options for a job of so many hosts."""
    weights = options.shard_weights
    if weights is not None and len(weights) != num_hosts:
        yield OptionError(
            f"shard_weights is of length {len(weights)}",
            f"the number of hosts is {num_hosts}, and each has one weight",
            "Pass one weight per host, in numeric order of hosts, or leave shard_weights out",
        )


def _faults(options: DataParallel) -> Iterator[OptionError]:
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None or field.default is not None:
            yield from range_faults(field.name, value, field.name)
