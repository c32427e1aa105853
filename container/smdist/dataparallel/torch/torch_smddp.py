# SPDX-License-Identifier: Apache-2.0
"""Importing this module registers our backend under SMDDP's name, too.

    import smdist.dataparallel.torch.torch_smddp
    torch.distributed.init_process_group("smddp")

For scripts of SMDDP 1.4 and later, after a rename of the import. "smddp" and
"smdist" are one backend, for groups as well; get_backend() says the name that
was given. On hosts with GPUs give "cpu:smddp,cuda:nccl". Source: SageMaker's
documentation of SMDDP, PyTorch API.
"""

from typing import Final

from smdist.dataparallel.torch.backend import register

NAME: Final = "smddp"

register(NAME)
