# SPDX-License-Identifier: Apache-2.0
"""Device of the ranks: a GPU, or the device of the tests, on which this benchmark is tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

VARIABLE = "SMDIST_BENCHMARK_DEVICE"
_SUPPORT = Path(__file__).parents[2] / "tests" / "support"
# NCCL uses sockets, as between hosts, and neither memory that ranks share nor the GPUs' links.
_NCCL_OVER_SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
}


def take(peer: str) -> str:
    """Take this rank's device, and return the backend that carries a peer's tensors there."""
    name = os.environ[VARIABLE]
    if name == "testdev":
        return _take_test_device(peer)
    number = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(number)
    os.environ["LOCAL_RANK"] = str(number)  # smp.init() takes the device of this number
    if peer == "nccl":
        os.environ.update(_NCCL_OVER_SOCKETS)
        return "cpu:gloo,cuda:nccl"
    return peer


def _take_test_device(peer: str) -> str:
    """Load the device; Gloo does not know it, and gets copies of tensors."""
    sys.path.insert(0, str(_SUPPORT))
    import test_device
    from test_device import host_group

    test_device.load()
    test_device.set_max_delay(0)
    if peer == "gloo":
        host_group.register()
        return host_group.BACKEND
    return f"cpu:{peer},testdev:{peer}"


def here() -> torch.device:
    """Return the device that this rank has taken."""
    found = torch.accelerator.current_accelerator()
    assert found is not None, "take() comes first"
    return torch.device(found.type, torch.accelerator.current_device_index())
