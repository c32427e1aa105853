# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.common.exceptions`."""

from smdist.dataparallel.torch.horovod.hvd_errors import HorovodInternalError

__all__ = ["HorovodInternalError"]
