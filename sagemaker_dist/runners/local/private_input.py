# SPDX-License-Identifier: Apache-2.0
"""Values that one process hands to another by its standard input, because they are secrets.

Other processes of the same user can read a process's files, command line and first environment
(/proc/PID/environ), but not what went through a pipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateInput:
    """Secrets that the driver hands to the supervisor of a job.

    Attributes:
        environment: Environment variables of the job's hosts.
        downloads: Environment variables of the process that downloads data; an empty value
            removes an inherited variable.
    """

    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    downloads: Mapping[str, str] = field(default_factory=dict, repr=False)

    def encoded(self) -> bytes:
        """Return the bytes for the standard input of the supervisor."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> PrivateInput:
        """Return the object whose `encoded` bytes are `data`."""
        return cls(**json.loads(data))


def take_input() -> bytes:
    """Read the standard input of this process to its end, and replace it by /dev/null.

    Children of this process then inherit /dev/null.
    """
    with os.fdopen(0, "rb", closefd=False) as stream:
        data = stream.read()
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    return data
