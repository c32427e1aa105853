# SPDX-License-Identifier: Apache-2.0
"""Options of a wrong kind, found before anything else looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.request import FileSystemInput, S3Input, TrainingOptions

_TEXT: Final = ("a str", (str,))
_PATH: Final = ("a str or Path", (str, PathLike))
_NUMBER: Final = ("an int", (int,))
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
    "container_log_level": _NUMBER,
}


def kind_faults(options: TrainingOptions) -> Iterator[OptionError]:
    """What is of no kind that the other checks could look at."""
    for name, (kind, types) in _KINDS.items():
        value = getattr(options, name)
        if value is not None and not isinstance(value, types):
            yield OptionError(
                f"{name} is {value!r}", f"its type is {type(value).__name__}", f"Pass {kind}"
            )
    for name, value in _places(options.inputs):
        if not isinstance(value.uri, str):
            what = f"the uri of input {name!r} is {value.uri!r}"
            yield OptionError(what, "it is no text", "Pass such as 's3://bucket/prefix'")


def missing_files(options: TrainingOptions) -> Iterator[OptionError]:
    """Dependencies that are not there."""
    for each in options.dependencies:
        if not Path(each).exists():
            yield OptionError(
                f"dependencies has {str(each)!r}", "there is no such file", "Correct the path"
            )


def _places(inputs: Any) -> Iterator[tuple[str, Any]]:
    named = inputs if isinstance(inputs, Mapping) else {"training": inputs}
    for name, value in named.items():
        if isinstance(value, (S3Input, FileSystemInput)):
            yield str(name), value
