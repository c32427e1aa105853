# SPDX-License-Identifier: Apache-2.0
"""`DataParallel`, the options of data parallel training, checked when they are created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from sagemaker_dist.contract.ranges import WEIGHTS, MiB, range_faults
from sagemaker_dist.contract.unknown_option import KeywordOptions
from sagemaker_dist.errors import OptionError, raise_all


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(KeywordOptions):
    """Options of data parallel training: a replica of the model on every rank, gradients averaged.

    Attributes:
        processes_per_host: Ranks started on each host, 1 to 1024. Default None: one rank per GPU,
            or one rank on a host without GPUs.
        fusion_bytes: Largest size of the buffers that gradients are packed into before each
            all-reduce, in bytes, 1 MiB to 4 GiB; the first buffers of a backward pass are smaller.
            Used by `smdist.dataparallel.torch.DistributedDataParallel`, Horovod's names and
            TensorFlow. Default 25 MiB.
        timeout_seconds: Longest duration of a collective, in seconds, 1 to 86,400. When it is
            exceeded, an error is raised on every rank. A timeout that the script passes to
            `init_process_group` takes precedence. Default 1,800, as in torch.
        start_timeout_seconds: Longest time for all hosts to connect at the start of the job, in
            seconds, 1 to 86,400. Default 600.
        lanes: Number of TCP connections between two ranks of different hosts, 1 to 16. One TCP
            connection reaches at most 5 Gbit/s, or 10 Gbit/s in a cluster placement group (AWS,
            Amazon EC2 instance network bandwidth, read 2026-11-21). A faster network needs several
            connections. Default None: the best number is measured at the start of the job.
        chunk_bytes: Size in bytes of the pieces in which a buffer is sent and reduced, 64 KiB to
            16 MiB and a multiple of 64. Small pieces overlap reducing with sending; large pieces
            need fewer messages. Default None: measured at the start of the job.
        one_shot_bytes: Largest buffer, in bytes, that is all-reduced in one step: every rank sends
            its whole buffer to every other rank, and adds all buffers itself. 0 to 1 MiB; 0 turns
            this off. Default None: measured at the start of the job.
        single_owner_bytes: Largest buffer, in bytes, that one rank reduces for all ranks; the next
            buffer is reduced by another rank. Buffers up to `one_shot_bytes` are excluded. This
            needs fewer messages than dividing a buffer among all ranks. 0 to 1 MiB; 0 turns this
            off. Default None: measured at the start of the job.
        arriving_bytes: Most bytes that all other hosts together may have in flight to one host.
            A limit prevents packet loss in switches with short queues. 0 to 64 MiB; with 0, only
            the kernel's TCP sets a limit. Default None: measured at the start of the job.
        shard_weights: Weight of each host, for hosts with unequal networks, such as (1, 2, 1): a
            host reduces a share of every buffer in proportion to its weight. One integer per host,
            0 to 65,535, in numeric order of hosts (algo-2 before algo-10). At least one is above 0.
            A list is converted to a tuple. Default None: equal shares.
        integrity: Check of the frames between hosts. "off": only TCP's checksum of 16 bits.
            "crc32c": a checksum of 32 bits in addition, which finds bits that failing hardware has
            changed. "mac": a message authentication code (GMAC), which also finds what an attacker
            in the network has changed, repeated, dropped or reordered. A wrong check ends the job
            with an error. Ranks of one host use shared memory and need no check. Default "off".
        encrypt: True encrypts the connections between hosts with TLS 1.3, by keys from the job's
            secret. It also finds all changes that integrity="mac" finds. Ranks of one host use
            shared memory, which no network sees. Default False.
        gpu_collectives: How collectives on GPU tensors travel among the GPUs of one host, in torch.
            "nccl": by NCCL, and each GPU exchanges only its share with other hosts; if a rank
            cannot do that, all ranks raise an error. "staged": through the host's memory. "auto":
            by NCCL if all ranks can, and else staged. Default "auto".
        silence_seconds: Time in seconds after which a host that answers nothing counts as lost, 5
            to 900. Shorter interruptions of the network end no job. Only the silence of the
            host's kernel counts: a process that is stopped or busy is no lost host. A process
            that crashes is reported at once. Default 60.
        max_restarts: Number of times that all ranks are started again after ranks have failed, 0 to
            1000. A restart takes place on the same hosts, in the same job; the script resumes from
            its newest checkpoint. A job that fails again in the same way without progress is not
            restarted. Default 0: a failure ends the job.
        elastic_min: Least number of hosts with which training goes on after hosts were lost, from
            1 to the number of hosts of the job. The script then trains by `smdist.elastic.run`, and
            the hosts that are left restore the last state that it committed. Default None: the
            loss of a host ends the job.

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
    integrity: str = "off"
    encrypt: bool = False
    gpu_collectives: str = "auto"
    silence_seconds: int = 60
    max_restarts: int = 0
    elastic_min: int | None = None

    def __post_init__(self) -> None:
        weights: Any = self.shard_weights
        if isinstance(weights, list):  # from JSON
            object.__setattr__(self, WEIGHTS, tuple(weights))
        raise_all(_faults(self))

    def distribution(self) -> dict[str, Any]:
        """Return the options as the dict that `distribution=` takes."""
        return {"smdist": {"dataparallel": asdict(self)}}


_DEFAULTS: Final = tuple((field.name, field.default) for field in fields(DataParallel))


def host_faults(options: DataParallel, num_hosts: int) -> Iterator[OptionError]:
    """Yield the faults of `options` that depend on the number of hosts of the job.

    `shard_weights` needs one weight for each host, and `elastic_min` is at most the number of
    hosts.
    """
    weights = options.shard_weights
    if weights is not None and len(weights) != num_hosts:
        yield OptionError(
            f"shard_weights is of length {len(weights)}",
            f"the number of hosts is {num_hosts}, and each host has one weight",
            "Pass one weight per host, in numeric order of hosts, or leave shard_weights out",
            about="shard_weights",
            kind="difference",
        )
    least = options.elastic_min
    if least is not None and least > num_hosts:
        yield OptionError(
            f"elastic_min is {least}",
            f"the number of hosts is {num_hosts}, and no more can be left",
            f"Pass an integer from 1 to {num_hosts}, or leave elastic_min out",
            about="elastic_min",
            kind="difference",
        )


def _faults(options: DataParallel) -> Iterator[OptionError]:
    for name, default in _DEFAULTS:
        value = getattr(options, name)
        if value is not None or default is not None:
            yield from range_faults(name, value, name)
    if options.elastic_min is not None and options.shard_weights is not None:
        yield OptionError(
            f"elastic_min is {options.elastic_min!r} and shard_weights is"
            f" {options.shard_weights!r}",
            "shard_weights has one weight for each host, and elastic_min lets hosts leave",
            "Leave one of them out",
            about="elastic_min",
            kind="conflict",
        )
    if options.elastic_min is not None and options.max_restarts:
        yield OptionError(
            f"elastic_min is {options.elastic_min!r} and max_restarts is {options.max_restarts!r}",
            "an elastic job goes on without the ranks that failed, and max_restarts starts all"
            " ranks again",
            "Leave one of them out",
            about="elastic_min",
            kind="conflict",
        )
