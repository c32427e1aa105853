# SPDX-License-Identifier: Apache-2.0
"""The script's command line as a log may show it: on one line, without what looks secret."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from sagemaker_dist.contract.private import masked, without_login
from smdist.launch.environment import script_arguments

Spell = Callable[[Mapping[str, Any]], list[str]]


def shown_command(
    program: str, hyperparameters: Mapping[str, Any], spell: Spell = script_arguments
) -> str:
    """The call as a shell would take it."""
    values = {name: masked(name, value) for name, value in hyperparameters.items()}
    return _one_line(without_login(shlex.join([program, *spell(values)])))


def _one_line(text: str) -> str:
    """What would break the line, colour or turn it, as Python spells it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
