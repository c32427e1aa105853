# SPDX-License-Identifier: Apache-2.0
"""Messages between TensorFlow servers (`task_server`) and the task starter on the first host.

The task starter (`task_starter`) is the program that starts a host's TensorFlow processes.

server                             starter
├── smdist server algo-2 ps 1  ──▶  name of the server, once it is connected
◀── ended, or failed           ──┤  result of the script, once it has ended
"""

from typing import Final

HELLO: Final = "smdist server "
ENDED: Final = b"ended\n"
FAILED: Final = b"failed\n"
MAX_LINE: Final = 256
