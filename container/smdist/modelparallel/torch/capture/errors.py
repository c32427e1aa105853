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
        is_error: Whether it is an exception of the forward function's, perhaps its own fault.
    """

    def __init__(
        self, module: str, reason: str, line: str = "", *, is_error: bool = False, mend: str = ""
    ) -> None:
        super().__init__(module, reason, line)
        self.module, self.reason, self.line, self.is_error = module, reason, line, is_error
        self._mend = mend

    @property
    def mend(self) -> str:
        """What users can do where the module is the whole model."""
        if self._mend:
            return self._mend
        move = "ove these lines into a submodule, which then stays whole"
        if self.is_error:
            return f"Run the model on this example by itself; if only capture fails, m{move}"
        return f"M{move}"
