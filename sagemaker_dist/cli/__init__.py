# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist`; each subcommand calls functions that Python users can call too."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final

import click

from sagemaker_dist.cli.root import root
from sagemaker_dist.cli.shared_options import OutputFormat
from sagemaker_dist.errors import DistError, OptionError

_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status.

    The status is 0 on success, 1 on failure, 2 on wrong usage, 130 after Ctrl-C. `arguments` are
    the words after `sagemaker-dist`, by default `sys.argv[1:]`.
    """
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    given = None if arguments is None else list(arguments)
    output = OutputFormat()
    try:
        status = root.main(given, prog_name="sagemaker-dist", standalone_mode=False, obj=output)
    except click.Abort:
        sys.stderr.write("sagemaker-dist: interrupted\n")
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OptionError as error:
        return _report(error, _USAGE, output)
    except DistError as error:
        return _report(error, _FAILED, output)
    return status if isinstance(status, int) else 0


def _exit_on_sigterm(number: int, _: FrameType | None) -> None:
    """Handle SIGTERM by raising SystemExit, so that cleanup code runs as after Ctrl-C."""
    raise SystemExit(128 + number)


def _report(error: DistError, status: int, output: OutputFormat) -> int:
    """Print an error to stderr as text, and return `status`, the exit status of the command.

    If `output` says that the user passed --json, the error is also printed to stdout as JSON.
    """
    if output.is_json:
        sys.stdout.write(json.dumps({"error": error.as_dict()}, indent=2) + "\n")
    sys.stderr.write(f"sagemaker-dist: {error}\n")
    return status
