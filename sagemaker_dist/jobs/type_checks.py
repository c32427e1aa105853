# SPDX-License-Identifier: Apache-2.0
"""Checks of the types of a job's options.

These checks run first, because the other checks expect right types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.gathering import path_exists
from sagemaker_dist.planning import directory_of
from sagemaker_dist.planning.request import FileSystemInput, InstanceGroup, S3Input, TrainingOptions

_OF_TENSORFLOW: Final = re.compile(
    r"^\s*(?:import|from)\s+(?:tensorflow|smdist\.dataparallel\.tensorflow|horovod\.tensorflow)\b",
    re.MULTILINE,
)
_OF_TORCH: Final = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)
_TEXT: Final = ("a str", (str,))
_PATH: Final = ("a str or Path", (str, PathLike))
_NUMBER: Final = ("an int", (int,))
_SWITCH: Final = ("True or False", (bool,))
_DICT: Final = ("a dict", (Mapping,))
_LIST: Final = ("a list", (list, tuple))
_KINDS: Final = {
    **dict.fromkeys(("instance_type", "role", "image_uri", "framework", "input_mode"), _TEXT),
    **dict.fromkeys(("output_path", "code_location", "checkpoint_s3_uri"), _TEXT),
    **dict.fromkeys(("base_job_name", "job_name", "checkpoint_local_path"), _TEXT),
    **dict.fromkeys(("entry_point", "source_dir"), _PATH),
    **dict.fromkeys(("hyperparameters", "environment"), _DICT),
    **dict.fromkeys(("dependencies", "subnets", "security_group_ids"), _LIST),
    **dict.fromkeys(("instance_groups", "metric_definitions"), _LIST),
    **dict.fromkeys(("use_spot_instances", "enable_network_isolation"), _SWITCH),
    **dict.fromkeys(("encrypt_inter_container_traffic", "disable_output_compression"), _SWITCH),
    "container_log_level": _NUMBER,
    "tags": ("a dict or list", (Mapping, list, tuple)),
}


def kind_faults(options: TrainingOptions) -> Iterator[OptionError]:
    """Yield an error for each option of a wrong type, with which other checks would fail."""
    for name, (kind, types) in _KINDS.items():
        value = getattr(options, name)
        if value is not None and not isinstance(value, types):
            yield OptionError(
                f"{name} is {value!r}",
                f"it is of type {type(value).__name__}",
                f"Pass {kind}",
                about=name,
                kind="type",
            )
    for number, group in enumerate(_listed(options.instance_groups)):
        if not isinstance(group, InstanceGroup):
            what = f"instance_groups[{number}] is {group!r}"
            about, hint = ("instance_groups", number), "Pass sagemaker_dist.InstanceGroup"
            yield OptionError(what, "the entry is not an InstanceGroup", hint, about, "type")
    for number, place in enumerate(_listed(options.dependencies)):
        if not isinstance(place, (str, PathLike)):
            what = f"dependencies[{number}] is {place!r}"
            about = "dependencies", number
            yield OptionError(what, "the entry is not a path", "Pass a str or Path", about, "type")
    for name, value in _places(options.inputs):
        if not isinstance(value.uri, str):
            what = f"the uri of input {name!r} is {value.uri!r}"
            yield OptionError(
                what,
                "it is not a str",
                "Pass a str such as 's3://bucket/prefix'",
                about=("inputs", name, "uri"),
                kind="type",
            )


def missing_files(options: TrainingOptions) -> Iterator[OptionError]:
    """Yield an error for each path in `dependencies` that does not exist or cannot be uploaded."""
    if options.dependencies and str(options.source_dir).lower().startswith("s3://"):
        yield OptionError(
            "dependencies is set with a source_dir in S3",
            "nothing is uploaded if the code is in S3 already",
            "Put the dependencies into the tarball in S3, and leave dependencies out",
            about="dependencies",
            kind="no_effect",
        )
    for each in options.dependencies:
        if not path_exists(Path(each)):
            yield OptionError(
                f"dependencies has {str(each)!r}",
                "there is no such file",
                "Correct the path",
                about="dependencies",
                kind="missing_file",
            )


def framework_warnings(options: TrainingOptions) -> Iterator[str]:
    """Yield a warning if the script imports TensorFlow and the job is for torch."""
    if options.framework != "torch" or not options.entry_point:
        return
    folder = None if options.source_dir is None else directory_of(str(options.source_dir))
    script = Path(folder or "", options.entry_point)
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError:  # in S3, or missing, which other checks report
        return
    if _OF_TENSORFLOW.search(text) and not _OF_TORCH.search(text):
        yield (
            f"{options.entry_point} imports TensorFlow, but framework is 'torch', so the image and"
            " the launcher are for torch. Set framework to 'tensorflow'"
        )


def session_faults(session: Any) -> Iterator[OptionError]:
    """Yield an error if `session` is neither a boto3.Session nor None."""
    if session is not None and not hasattr(session, "client"):
        yield OptionError(
            f"session is {session!r}",
            "it is not a boto3.Session",
            "Pass a boto3.Session, or leave session out",
            about="session",
            kind="type",
        )


def _listed(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else ()


def _places(inputs: Any) -> Iterator[tuple[str, Any]]:
    named = inputs if isinstance(inputs, Mapping) else {"training": inputs}
    for name, value in named.items():
        if isinstance(value, (S3Input, FileSystemInput)):
            yield str(name), value
