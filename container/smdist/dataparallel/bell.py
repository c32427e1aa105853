# SPDX-License-Identifier: Apache-2.0
"""The few words between servers of TensorFlow and the starter of the first host.

server                             starter
├── smdist server algo-2 ps 1  ──▶  knows who it is, and when it is lost
◀── ended, or failed           ──┤  how the script ended
"""

from typing import Final

HELLO: Final = "smdist server "
ENDED: Final = b"ended\n"
FAILED: Final = b"failed\n"
MAX_LINE: Final = 256
