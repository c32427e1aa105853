# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.common.exceptions`."""

from importlib.util import find_spec

if find_spec("torch"):
    from smdist.dataparallel.torch.horovod.hvd_errors import HorovodInternalError
else:

    class HorovodInternalError(RuntimeError):  # type: ignore[no-redef]
        """Error of a collective of PyTorch; never raised where PyTorch is not installed."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name
    """Signal that hosts were added; never raised, because no host joins a job that runs.

    Attributes:
        skip_sync: Whether the state need not be synchronized.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
