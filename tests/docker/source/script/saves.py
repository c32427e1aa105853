# SPDX-License-Identifier: Apache-2.0
"""Trains for ever; saves when the job is stopped, and says so while it does."""

import os
import signal
import sys
import time
from pathlib import Path

MODEL = Path(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"))
NAME = f"rank-{os.environ.get('RANK', 'none')}"


def save(*_):
    print(NAME, "saves", flush=True)
    time.sleep(0.5)
    (MODEL / f"{NAME}-saved").touch()
    print(NAME, "has saved", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
(MODEL / f"{NAME}-ready").touch()
time.sleep(120)
