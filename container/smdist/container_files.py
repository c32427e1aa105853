# SPDX-License-Identifier: Apache-2.0
"""JSON files that SageMaker and its SDK write for a container.

SageMaker lists the machines of a job in resourceconfig.json. ModelTrainer, a class of its SDK,
sends its request as files in two channels:

    sm_drivers/distributed.json   smdist's options in the hyperparameter format, under the
                                  name of the hyperparameter that carries them otherwise
    sm_drivers/sourcecode.json    the script, and the requirements to install
    code/                         the user's code; a tuning job sends a tarball instead

The channels are read only if distributed.json holds smdist's options. Otherwise
ModelTrainer starts the script by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY, sort_hosts
from sagemaker_dist.errors import LaunchError, OptionError

_AUTO: Final = "auto"  # ModelTrainer's word for "install the file if it exists"
_REQUIREMENTS: Final = "requirements.txt"
_TARBALL: Final = ".tar.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """ModelTrainer's request to smdist's launcher.

    Attributes:
        document: smdist's options in the hyperparameter format.
        program: The script, relative to the code.
        code: The directory of the channel with the code, or None.
        tarball: The archive in it to unpack, or None.
        requirements: The requirements file to install, relative to the code, or "".
        needs_requirements: Whether a missing requirements file is an error.
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
    """Read the channels of ModelTrainer; return None if they do not request smdist's launcher.

    Raises:
        LaunchError: A file exists and is unreadable.
        OptionError: The request has both a command and ranks.
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
            about="source_code",
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
    """Read a JSON object; return an empty one if the file does not exist.

    Raises:
        LaunchError: The file is not a JSON object, or cannot be read.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Machines of a job, from resourceconfig.json.

    Attributes:
        all_hosts: Every host of the job, in numeric order.
        hosts: The hosts that train together: those of the current instance group.
        document: The content of the file, for SM_RESOURCE_CONFIG.
    """

    current_host: str
    all_hosts: tuple[str, ...]
    hosts: tuple[str, ...]
    interface: str = "eth0"
    instance_type: str = ""
    group: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, Any]:
        """Every instance group of the job, by its name."""
        groups = self.document.get("instance_groups") or []
        return {str(group.get("instance_group_name")): group for group in groups}


def read_resources(path: Path) -> Resources:
    """Read resourceconfig.json; a missing file means that this host is the whole job.

    Raises:
        LaunchError: The file is unreadable, or does not list this host.
    """
    document = read_object(path)
    current = str(document.get("current_host", "127.0.0.1"))
    everyone = sort_hosts(str(host) for host in document.get("hosts") or [current])
    groups = document.get("instance_groups") or []
    name = str(document.get("current_group_name", ""))
    hosts = everyone
    if len(groups) > 1:
        hosts = _group_hosts(groups, name)
    if current not in hosts:
        raise LaunchError(
            f"current_host is {current!r}",
            f"it is not among the hosts {', '.join(hosts)}",
            "Name this host in resourceconfig.json and in its instance group",
        )
    return Resources(
        current_host=current,
        all_hosts=everyone,
        hosts=hosts,
        interface=str(document.get("network_interface_name") or ""),
        instance_type=str(document.get("current_instance_type") or ""),
        group=name,
        document=document,
    )


def _group_hosts(groups: list[dict[str, Any]], name: str) -> tuple[str, ...]:
    mine = [group for group in groups if group.get("instance_group_name") == name]
    return sort_hosts(str(host) for group in mine for host in group.get("hosts", []))
