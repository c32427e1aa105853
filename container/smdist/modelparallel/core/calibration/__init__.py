# SPDX-License-Identifier: Apache-2.0
"""Measured speeds of one machine, as a JSON file that plans read.

calibration.py        the data, and the speeds that plans need
calibration_file.py   reading, with all faults at once, and writing
"""

from smdist.modelparallel.core.calibration.calibration import (
    AllReduceTime,
    Calibration,
    Disturbance,
    FolderSpeed,
    MachineFacts,
    MessageTime,
    ProductSpeed,
)
from smdist.modelparallel.core.calibration.calibration_file import load, save

__all__ = [
    "AllReduceTime",
    "Calibration",
    "Disturbance",
    "FolderSpeed",
    "MachineFacts",
    "MessageTime",
    "ProductSpeed",
    "load",
    "save",
]
