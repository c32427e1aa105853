# SPDX-License-Identifier: Apache-2.0
"""Messages between TensorFlow task servers and the launcher of the first host.

server                             launcher
├── smdist server algo-2 ps 1  ──▶  knows the task's name, and when the task is lost
◀── ended, or failed           ──┤  how the script ended
"""

from typing import Final

HELLO: Final = "smdist server "
ENDED: Final = b"ended\n"
FAILED: Final = b"failed\n"
MAX_LINE: Final = 256
