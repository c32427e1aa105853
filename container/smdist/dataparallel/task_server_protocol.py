# SPDX-License-Identifier: Apache-2.0
"""Messages between TensorFlow servers (`task_server`) and the first host's `task_starter`.

server                             starter
├── smdist server algo-2 ps 1  ──▶  name of the server, once it is connected
◀── ended, or failed           ──┤  result of the script, once it has ended
"""

from typing import Final

HELLO: Final = "smdist server "
ENDED: Final = b"ended\n"
FAILED: Final = b"failed\n"
MAX_LINE: Final = 256
