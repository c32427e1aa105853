# SPDX-License-Identifier: Apache-2.0
"""The GPUs of one machine, divided among the hosts that it emulates."""

from __future__ import annotations

from collections.abc import Sequence

from sagemaker_dist.errors import OptionError


def divide_gpus(gpus: Sequence[str], num_hosts: int) -> tuple[tuple[str, ...], ...]:
    """Give every host the same number of GPUs, neighbours together; what is over stays unused.

    Hosts of a job are alike, so that every one runs as many ranks:
    8 GPUs, 3 hosts -> (0 1) (2 3) (4 5).

    Raises:
        OptionError: There are fewer GPUs than hosts.
    """
    share = len(gpus) // num_hosts
    if not share:
        raise OptionError(
            f"instance_count is {num_hosts} with instance_type='local_gpu'",
            f"this machine has {len(gpus)} GPUs, and every host needs one",
            "Pass a smaller instance_count, or instance_type='local'",
        )
    return tuple(tuple(gpus[i * share : (i + 1) * share]) for i in range(num_hosts))
