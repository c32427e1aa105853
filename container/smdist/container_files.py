# SPDX-License-Identifier: Apache-2.0
"""JSON files that SageMaker and its SDK write for a container.

SageMaker lists the machines of a job in resourceconfig.json. ModelTrainer, a class of SageMaker's
SDK, sends a request in two input channels, sm_drivers and code:

    sm_drivers/distributed.json   smdist's options
    sm_drivers/sourcecode.json    the script, and the requirements to install
    code/                         the user's code; a tuning job sends a tarball instead

A request without smdist's options is ignored. A job that was not sent by ModelTrainer has smdist's
options in a hyperparameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import KEY, sort_hosts
from sagemaker_dist.errors import LaunchError, OptionError

_AUTO: Final = "auto"  # ModelTrainer's value for "install the file if it exists"
_REQUIREMENTS: Final = "requirements.txt"
_TARBALL: Final = ".tar.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """Request to smdist that ModelTrainer, a class of SageMaker's SDK, sends in input channels.

    The channel sm_drivers has the options, and the channel code has the user's code.

    Attributes:
        document: smdist's options as JSON text.
        program: Path of the script, relative to the code.
        code: Directory of the channel code; None if the job has no such channel.
        tarball: Archive in `code` to unpack; None if the code is not packed.
        requirements: Path of the requirements file to install, relative to the code; "" for none.
        needs_requirements: True if a missing requirements file is an error.
        installer: The SDK's script that installs from private package indices; None if the request
            has no such script.
    """

    document: str
    program: str
    code: Path | None = None
    tarball: Path | None = None
    requirements: str = ""
    needs_requirements: bool = True
    installer: Path | None = None


def read_drivers(base: Path) -> Drivers | None:
    """Read ModelTrainer's request from the channels below `base`; None without such a request.

    Raises:
        LaunchError: A file exists and is unreadable.
        OptionError: The request has both a command and options for ranks; a job can have only one.
    """
    data = base / "input" / "data"
    options = read_object(data / "sm_drivers" / "distributed.json").get(KEY)
    if options is None:
        return None
    source = read_object(data / "sm_drivers" / "sourcecode.json")
    if source.get("command"):
        raise OptionError(
            f"source_code has command={source['command']!r}, and the job has distributed=",
            "ranks run an entry_script, and a command starts no ranks",
            "Pass entry_script instead of command, or leave distributed= out",
            about=("source_code", "command"),
            kind="conflict",
        )
    given = str(source.get("requirements") or "")
    code, archive = data / "code", Path(str(source.get("source_dir") or "")).name
    installer = data / "sm_drivers" / "scripts" / "install_requirements.py"
    return Drivers(
        document=json.dumps(options),
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
    except RecursionError as error:
        raise _broken(path, "its brackets are nested too deep") from error
    if not isinstance(document, dict):
        raise _broken(path, f"it contains a {type(document).__name__}, not a JSON object")
    return document


def _broken(path: Path, why: str) -> LaunchError:
    return LaunchError(
        f"the file {path} cannot be read",
        why,
        "Make it a readable file with one JSON object; SageMaker or the local runner writes it",
        about=path.name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Hosts of a job, from resourceconfig.json.

    Attributes:
        current_host: Name of this host.
        all_hosts: Names of all hosts of the job, in numeric order.
        hosts: Names of the hosts that train together: those of this host's instance group.
        interface: Name of the network interface; "" if unknown.
        instance_type: Type of this host, such as "ml.p4d.24xlarge"; "" if unknown.
        group: Name of this host's instance group; "" if the job has no groups.
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
        """Return the entry of each instance group in resourceconfig.json, by the group's name."""
        groups = self.document.get("instance_groups") or []
        return {str(group.get("instance_group_name")): group for group in groups}


def read_resources(path: Path) -> Resources:
    """Read resourceconfig.json; without the file, this host is the only one of the job.

    Raises:
        LaunchError: The file is unreadable, or does not list this host.
    """
    document = read_object(path)
    current = str(document.get("current_host", "127.0.0.1"))
    everyone = sort_hosts(_host_names(document, path) or [current])
    groups = document.get("instance_groups") or []
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise _broken(path, "instance_groups is not a list of JSON objects")
    name = str(document.get("current_group_name", ""))
    hosts = everyone
    if len(groups) > 1:
        hosts = _group_hosts(groups, name, path)
    if current not in hosts:
        raise LaunchError(
            f"current_host is {current!r}",
            f"this name is not among the hosts that train together: {', '.join(hosts)}",
            "Add this host to the hosts and to its instance group in resourceconfig.json",
            about="current_host",
            kind="unknown",
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


def _group_hosts(groups: list[dict[str, Any]], name: str, path: Path) -> tuple[str, ...]:
    mine = [group for group in groups if group.get("instance_group_name") == name]
    return sort_hosts(host for group in mine for host in _host_names(group, path))


def _host_names(document: Mapping[str, Any], path: Path) -> list[str]:
    hosts = document.get("hosts") or []
    if not isinstance(hosts, list):
        raise _broken(path, f"hosts is a {type(hosts).__name__}, not a list")
    return [str(host) for host in hosts]


def decode_value(value: Any) -> Any:
    """Return a hyperparameter's value without the SDK's JSON encoding.

    A string that is not JSON, and a value that is no string, are returned unchanged.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def log_level(value: Any) -> int:
    """Return a value as one of Python's logging levels; 20, which is INFO, if it is no number."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 20
