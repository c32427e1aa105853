# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist`, the command: each subcommand calls what Python offers as well."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final

import click

from sagemaker_dist.cli.root import root
from sagemaker_dist.errors import DistError, OptionError

_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 if it failed, 2 if it was not understood, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, _leave)
    given = None if arguments is None else list(arguments)
    try:
        status = root.main(given, prog_name="sagemaker-dist", standalone_mode=False)
    except click.Abort:
        sys.stderr.write("sagemaker-dist: interrupted\n")
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OptionError as error:
        return _say(error, _USAGE)
    except DistError as error:
        return _say(error, _FAILED)
    return status if isinstance(status, int) else 0


def _leave(number: int, _: FrameType | None) -> None:
    """End as after Ctrl-C, so that nothing is left behind."""
    raise SystemExit(128 + number)


def _say(error: DistError, status: int) -> int:
    sys.stderr.write(f"sagemaker-dist: {error}\n")
    return status
