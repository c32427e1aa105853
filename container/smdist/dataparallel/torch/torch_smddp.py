# SPDX-License-Identifier: Apache-2.0
"""Backend name of SMDDP: importing this module registers the backend smdist as "smddp", too.

    import smdist.dataparallel.torch.torch_smddp
    torch.distributed.init_process_group("smddp")

Scripts for SMDDP 1.4 and later need no other change than this import. "smddp" and "smdist" are
two names of one backend; get_backend() returns the name that was passed. The backend takes CPU
tensors and CUDA tensors; the latter have not yet been tried on a GPU. With "cpu:smddp,cuda:nccl",
NCCL sends CUDA tensors. Source: SageMaker's documentation of SMDDP, PyTorch API.
"""

from typing import Final

from smdist.dataparallel.torch.backend import register

NAME: Final = "smddp"

register(NAME)
