# SPDX-License-Identifier: Apache-2.0
"""Division of one machine's GPUs among its emulated hosts."""

from __future__ import annotations

from collections.abc import Sequence

from sagemaker_dist.errors import OptionError


def divide_gpus(gpus: Sequence[str], num_hosts: int) -> tuple[tuple[str, ...], ...]:
    """Return the GPUs of each emulated host, in the order of the hosts.

    All hosts get the same number of neighbouring GPUs, because all hosts of a job run the same
    number of ranks; the remaining GPUs are not used. For 8 GPUs and 3 hosts: (0 1) (2 3) (4 5).

    Args:
        gpus: Ids of this machine's GPUs.
        num_hosts: Number of emulated hosts.

    Raises:
        OptionError: There are fewer GPUs than hosts.
    """
    share = len(gpus) // num_hosts
    if not share:
        raise OptionError(
            f"instance_count is {num_hosts} with instance_type='local_gpu'",
            f"this machine has {len(gpus)} GPUs, and every host needs at least one",
            "Pass a smaller instance_count, or instance_type='local'",
            about="instance_count",
        )
    return tuple(tuple(gpus[i * share : (i + 1) * share]) for i in range(num_hosts))
