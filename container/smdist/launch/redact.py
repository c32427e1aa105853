# SPDX-License-Identifier: Apache-2.0
"""Command line of the script for the log: on one line, with secrets masked."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from sagemaker_dist.contract.redaction import masked, without_login
from smdist.launch.environment import script_arguments

Spell = Callable[[Mapping[str, Any]], list[str]]


def shown_command(
    program: str, hyperparameters: Mapping[str, Any], spell: Spell = script_arguments
) -> str:
    """Return the script's command line as a user would type it in a shell, with secrets masked.

    Args:
        program: Path of the script.
        hyperparameters: The user's hyperparameters, by name.
        spell: Function that converts hyperparameters to the script's arguments.
    """
    values = {name: masked(name, value) for name, value in hyperparameters.items()}
    return _one_line(without_login(shlex.join([program, *spell(values)])))


def _one_line(text: str) -> str:
    """Escape line breaks and other characters that are not printable, as Python's repr does."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
