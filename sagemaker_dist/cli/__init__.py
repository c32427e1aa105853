# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist`, the command: each subcommand calls what Python offers as well."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import FrameType

from sagemaker_dist.cli import image, instances
from sagemaker_dist.errors import DistError, OptionError

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 if it failed, 2 if it was not understood."""
    parsed = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    try:
        parsed.run(parsed)
    except OptionError as error:
        return _say(error, _USAGE)
    except DistError as error:
        return _say(error, _FAILED)
    except KeyboardInterrupt:
        sys.stderr.write("sagemaker-dist: interrupted\n")
        return _INTERRUPTED
    return 0


def _leave(number: int, _: FrameType | None) -> None:
    """End as after Ctrl-C, so that nothing is left behind."""
    raise SystemExit(128 + number)


def _say(error: DistError, status: int) -> int:
    sys.stderr.write(f"sagemaker-dist: {error}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sagemaker-dist", description="Images and hosts for distributed jobs on SageMaker."
    )
    parser.add_argument("--version", action="version", version=version("sagemaker-dist"))
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    image.add(commands)
    instances.add(commands)
    return parser
