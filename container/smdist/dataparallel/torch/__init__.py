# SPDX-License-Identifier: Apache-2.0
"""PyTorch data parallelism: importing this module registers the torch.distributed backend "smdist".

    import smdist.dataparallel.torch
    torch.distributed.init_process_group("smdist")

torch's own DistributedDataParallel works with this backend unchanged. The
DistributedDataParallel of this module also applies the job's `fusion_bytes` and prints progress
lines; report() adds values such as the loss to them. Scripts for AWS's SMDDP import
`torch_smddp`, or `distributed` and `parallel.distributed`.
"""

from smdist.dataparallel.torch.abi_check import check_adapter

check_adapter()

from smdist.dataparallel.torch import hooks  # noqa: E402  the adapter is checked first
from smdist.dataparallel.torch.backend import register  # noqa: E402  idem
from smdist.dataparallel.torch.barrier import monitored_barrier  # noqa: E402  idem
from smdist.dataparallel.torch.ddp import DistributedDataParallel  # noqa: E402  idem
from smdist.dataparallel.torch.step_report import register as register_last_line  # noqa: E402  idem
from smdist.dataparallel.torch.step_report import report  # noqa: E402  idem

__all__ = ["DistributedDataParallel", "hooks", "monitored_barrier", "report"]

register()
register_last_line()
