# SPDX-License-Identifier: Apache-2.0
"""What capture raises: at the user, and inside."""

from __future__ import annotations

from sagemaker_dist.errors import OptionError


class CaptureError(OptionError):
    """A model's forward pass cannot be taken apart: names the module and the line."""


class Escalation(BaseException):
    """The glue of a module cannot be recorded, so the module becomes a unit.

    Attributes:
        module: Its name; "" is the model itself.
        reason: What stands in the way.
        line: "file.py:12" of the user's code, "" if unknown.
    """

    def __init__(self, module: str, reason: str, line: str = "") -> None:
        super().__init__(module, reason, line)
        self.module, self.reason, self.line = module, reason, line
