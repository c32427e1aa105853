# SPDX-License-Identifier: Apache-2.0
"""Errors of capture: CaptureError for users, and Escalation, which capture itself handles."""

from __future__ import annotations

from sagemaker_dist.errors import KeyPath, OptionError


class CaptureError(OptionError):
    """Error for a forward pass that cannot be recorded; the text names the module and the line.

    Attributes:
        about: Names of the modules, parameters or arguments that are the obstacle, if there are
            any.
        kind: Obstacle as one word, such as "needs_values"; "failed" if the model itself fails.
        line: Line of the user's code, such as "/home/me/model.py:12"; "" if unknown.
    """

    own_fields = ("line",)
    line: str = ""


class Escalation(BaseException):
    """Exception for a module whose operations cannot be recorded one by one.

    The recording then starts again, with this module as a unit: a module that is recorded as one
    call and never split. If the module is the model itself, the user gets a CaptureError.

    Attributes:
        module: Name of the module; "" is the model itself.
        kind: The obstacle as one word, such as "needs_values".
        reason: The obstacle, as text.
        line: "file.py:12" of the user's code, "" if unknown.
        about: Names of the modules or parameters that are the obstacle.
        is_error: True if the forward function raised an exception, perhaps because it is wrong.
        hint: Advice for the user, shown if capture fails.
    """

    def __init__(
        self,
        module: str,
        kind: str,
        reason: str,
        line: str = "",
        *,
        about: KeyPath = (),
        is_error: bool = False,
        hint: str = "",
    ) -> None:
        super().__init__(module, kind, reason, line)
        self.module, self.kind, self.reason, self.line = module, kind, reason, line
        self.about, self.is_error = about, is_error
        self._hint = hint

    @property
    def hint(self) -> str:
        """Advice for the user, shown if capture fails."""
        if self._hint:
            return self._hint
        move = "ove these lines into a submodule, which then stays whole"
        if self.is_error:
            return f"Run the model on this example by itself; if only capture fails, m{move}"
        return f"M{move}"
