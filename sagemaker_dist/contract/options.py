# SPDX-License-Identifier: Apache-2.0
"""What may be asked of a job: frozen options that check themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.errors import OptionError, raise_all

MiB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
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

    Raises:
        OptionError: A value is outside its range; all faults are reported.
    """

    processes_per_host: int | None = None
    fusion_bytes: int = 25 * MiB
    timeout_seconds: int = 1800
    start_timeout_seconds: int = 600

    def __post_init__(self) -> None:
        raise_all(_faults(self))


_RANGES: Final = {  # option: (least, most, why)
    "processes_per_host": (1, 1024, "a host starts between 1 and 1024 ranks"),
    "fusion_bytes": (
        MiB,
        4096 * MiB,
        "below 1 MiB every all-reduce is latency rather than data, and above 4 GiB"
        " nothing is left to overlap with the backward pass",
    ),
    "timeout_seconds": (1, 86_400, "a collective may take between one second and one day"),
    "start_timeout_seconds": (1, 86_400, "hosts may wait between one second and one day"),
}


def _faults(options: DataParallel) -> Iterator[OptionError]:
    for name, (least, most, why) in _RANGES.items():
        value = getattr(options, name)
        if value is None and name == "processes_per_host":
            continue
        if type(value) is not int or not least <= value <= most:
            yield OptionError(
                f"{name} is {value!r}", why, f"Pass an integer from {least} to {most}"
            )
