# SPDX-License-Identifier: Apache-2.0
"""The JSON files that SageMaker and its SDK leave for a container.

SageMaker's ModelTrainer sends what it has to say as files in two channels:

    sm_drivers/distributed.json   our options as on the wire, below the name of the
                                  hyperparameter that carries them elsewhere
    sm_drivers/sourcecode.json    the script, and which requirements to install
    code/                         the user's code; a tuner sends a tarball instead

They count only where the options are ours; what ModelTrainer starts by itself is
its own affair.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY
from sagemaker_dist.errors import LaunchError, OptionError

_AUTO: Final = "auto"  # ModelTrainer's word for "where there is one"
_REQUIREMENTS: Final = "requirements.txt"
_TARBALL: Final = ".tar.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """What ModelTrainer asks of our launcher.

    Attributes:
        document: Our options as on the wire.
        program: The script, relative to the code.
        code: The directory of the channel with the code, or None.
        tarball: What to unpack in it, or None.
        requirements: The file to install, relative to the code, or "".
        needs_requirements: That file has to be there.
        installer: The SDK's own script for private package indices, or None.
    """

    document: str
    program: str
    code: Path | None = None
    tarball: Path | None = None
    requirements: str = ""
    needs_requirements: bool = True
    installer: Path | None = None


def read_drivers(base: Path) -> Drivers | None:
    """Read the channels of ModelTrainer; None where they do not ask for our launcher.

    Raises:
        LaunchError: A file is there and unreadable.
        OptionError: A command is to run, and ranks as well.
    """
    data = base / "input" / "data"
    asked = read_object(data / "sm_drivers" / "distributed.json").get(KEY)
    if asked is None:
        return None
    source = read_object(data / "sm_drivers" / "sourcecode.json")
    if source.get("command"):
        raise OptionError(
            f"source_code has command={source['command']!r} beside distributed",
            "ranks run an entry_script, and a job has one launcher",
            "Leave out one of the two",
        )
    given = str(source.get("requirements") or "")
    code, archive = data / "code", Path(str(source.get("source_dir") or "")).name
    installer = data / "sm_drivers" / "scripts" / "install_requirements.py"
    return Drivers(
        document=json.dumps(asked),
        program=str(source.get("entry_script") or ""),
        code=code if code.is_dir() else None,
        tarball=code / archive if archive.endswith(_TARBALL) and code.is_dir() else None,
        requirements=_REQUIREMENTS if given == _AUTO else given,
        needs_requirements=given != _AUTO,
        installer=installer if installer.is_file() else None,
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there is an empty one.

    Raises:
        LaunchError: It is no JSON object, or cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(document, dict):
        raise _broken(path, f"it holds a {type(document).__name__}, not an object")
    return document


def _broken(path: Path, why: str) -> LaunchError:
    return LaunchError(
        f"{path} cannot be used", why, "It is written by SageMaker or by the local runner"
    )
