# SPDX-License-Identifier: Apache-2.0
"""One rank of two fails, after bytes that are no text; the other waits for it."""

import os
import sys
import time

sys.stdout.buffer.write(b"\xff\xfe no text\n")
sys.stdout.flush()
if os.environ["RANK"] == "1":
    raise ValueError("boom")
time.sleep(120)
