# SPDX-License-Identifier: Apache-2.0
"""The JSON files that SageMaker and its SDK leave for a container.

SageMaker names the machines of a job in resourceconfig.json. Its ModelTrainer sends what it has to
say as files in two channels:

    sm_drivers/distributed.json   our options as on the wire, below the name of the
                                  hyperparameter that carries them elsewhere
    sm_drivers/sourcecode.json    the script, and which requirements to install
    code/                         the user's code; a tuner sends a tarball instead

The channels count only where the options are ours; what ModelTrainer starts by itself is
its own affair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY, sort_hosts
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The machines of a job, as resourceconfig.json has them.

    Attributes:
        all_hosts: Every host of the job, in numeric order.
        hosts: Those that train together: the current group's.
        document: The file itself, for SM_RESOURCE_CONFIG.
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
    """Read resourceconfig.json; one that is missing is this host alone.

    Raises:
        LaunchError: It is unreadable, or this host is not in it.
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
