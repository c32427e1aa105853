# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist completion bash | zsh | fish`."""

from __future__ import annotations

import sys
from typing import Final

import click
from click.shell_completion import get_completion_class

_VARIABLE: Final = "_SAGEMAKER_DIST_COMPLETE"  # environment variable; click derives its name


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options and job names.

    \b
    bash   source <(sagemaker-dist completion bash)    in ~/.bashrc
    zsh    source <(sagemaker-dist completion zsh)     in ~/.zshrc
    fish   sagemaker-dist completion fish | source     in config.fish
    """
    from sagemaker_dist.cli.root import root

    kind = get_completion_class(shell)
    assert kind is not None, "click completes in these shells"
    sys.stdout.write(kind(root, {}, "sagemaker-dist", _VARIABLE).source())
