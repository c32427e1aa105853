# SPDX-License-Identifier: Apache-2.0
"""Division of one machine's GPUs among its emulated hosts."""

from __future__ import annotations

from collections.abc import Sequence

from sagemaker_dist.errors import OptionError


def divide_gpus(gpus: Sequence[str], num_hosts: int) -> tuple[tuple[str, ...], ...]:
    """Return the GPUs of every host: equal numbers, neighbours together; a remainder stays unused.

    All hosts of a job run equally many ranks: 8 GPUs, 3 hosts -> (0 1) (2 3) (4 5).

    Raises:
        OptionError: There are fewer GPUs than hosts.
    """
    share = len(gpus) // num_hosts
    if not share:
        raise OptionError(
            f"instance_count is {num_hosts} with instance_type='local_gpu'",
            f"this machine has {len(gpus)} GPUs, and every host needs one",
            "Pass a smaller instance_count, or instance_type='local'",
            about="instance_count",
        )
    return tuple(tuple(gpus[i * share : (i + 1) * share]) for i in range(num_hosts))
