# SPDX-License-Identifier: Apache-2.0
"""Keys of the dict that is passed as `distribution=`, and checks of such a dict.

SageMaker's SDK silently ignores unknown keys, and keys without "enabled": the job then runs one
process per host. These checks report such keys as errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from sagemaker_dist.contract.aws_distributions import is_pipeline_variable
from sagemaker_dist.contract.data_parallel import DataParallel
from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import KeyPath, OptionError, closest, subscripted, within

SMDIST: Final = "smdist"
AWS: Final = "smdistributed"
GROUPS: Final = "instance_groups"
# Keys for which SageMaker's and the sagemaker-dist launcher start ranks, of torch and TensorFlow.
LAUNCH_KEYS: Final = ("torch_distributed", "pytorchddp")
STRATEGY_KEYS: Final = ("parameter_server", "multi_worker_mirrored_strategy")
DATA: Final = "dataparallel"
MODEL: Final = "modelparallel"
MPI_OPTIONS: Final = "custom_mpi_options"
_SWITCHES: Final = {  # each key's own keys; SageMaker SDK 2.257.7, fw_utils.py and estimator.py
    "torch_distributed": ("enabled",),
    "pytorchddp": ("enabled", MPI_OPTIONS),
    "pytorchxla": ("enabled",),
    "mpi": ("enabled", "processes_per_host", "custom_mpi_options"),
    "parameter_server": ("enabled",),
    "multi_worker_mirrored_strategy": ("enabled",),
}
STRATEGIES: Final = (SMDIST, AWS, *_SWITCHES)
_AWS_SWITCHES: Final = {
    DATA: ("enabled", MPI_OPTIONS),
    MODEL: ("enabled", "parameters"),
}
OPTIONS: Final = {  # names of options below "smdist", by key
    DATA: tuple(option.name for option in fields(DataParallel)),
    MODEL: tuple(option.name for option in fields(ModelParallel)),
}
KINDS: Final[Mapping[str, type[DataParallel] | type[ModelParallel]]] = {
    DATA: DataParallel,
    MODEL: ModelParallel,
}
_IN_SCRIPT: Final = "The script sets it up by itself: pass {'torch_distributed': {'enabled': True}}"
_HINTS: Final = {  # for keys that users try although they do not exist
    **dict.fromkeys(("accelerate", "ddp", "deepspeed", "fsdp", "lightning"), _IN_SCRIPT),
    "horovod": (
        "Pass DataParallel(), and in a script for TensorFlow"
        " import smdist.dataparallel.tensorflow.keras as hvd"
    ),
}


def spelling_faults(value: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield a fault for each unknown key and wrongly typed value in the dict of `distribution=`."""
    valid = {SMDIST, AWS, GROUPS, *_SWITCHES}
    for key, part in value.items():
        where = "distribution", key
        if key not in valid:
            yield _unknown(("distribution",), key, valid)
        elif key == GROUPS:
            yield from _list_faults(where, part)
        elif key in _SWITCHES:
            yield from _switch_faults(where, part, _SWITCHES[key])
        else:
            yield from _section_faults(key, part)
    if SMDIST in value and isinstance(value.get(AWS), dict) and DATA in value[AWS]:
        yield OptionError(
            f"distribution has both {SMDIST!r} and {AWS!r}",
            "both request data parallelism, and a job has one implementation of it",
            f"Keep {SMDIST!r}, and leave {AWS!r} out",
            about="distribution",
            kind="conflict",
        )


def _section_faults(key: str, part: Any) -> Iterator[OptionError]:
    where = "distribution", key
    if not isinstance(part, dict) or not all(isinstance(each, dict) for each in part.values()):
        yield OptionError(
            f"{subscripted(where)} is {part!r}",
            "its value must be a dict of dicts",
            f"Pass {{{key!r}: {{{DATA!r}: {{'enabled': True}}}}}}",
            about=where,
            kind="type",
        )
        return
    valid = _AWS_SWITCHES if key == AWS else OPTIONS
    for name in part:
        if name not in valid:
            yield _unknown(where, name, valid)
        elif key == SMDIST:
            yield from _option_faults((*where, name), name, part[name])
        else:
            yield from _switch_faults((*where, name), part[name], valid[name])
    if not part:
        yield OptionError(
            f"{subscripted(where)} is empty",
            f"it needs {DATA!r} or {MODEL!r}",
            f"Add {DATA!r}",
            about=where,
            kind="missing",
        )
    if len(set(part) & set(_AWS_SWITCHES)) > 1:
        yield OptionError(
            f"{subscripted(where)} has both {DATA!r} and {MODEL!r}",
            "a job uses only one of the two",
            "Keep one of them"
            if key == AWS
            else f"Keep {MODEL!r}, and pass the options of {DATA!r} as its 'engine'",
            about=where,
            kind="conflict",
        )


def _option_faults(where: KeyPath, key: str, section: Mapping[str, Any]) -> Iterator[OptionError]:
    names = OPTIONS[key]
    for name in section:
        if name not in (*names, "enabled"):
            yield _unknown(where, name, (*names, "enabled"))
    yield from _enabled_faults(where, section.get("enabled", True))
    try:
        KINDS[key](**{name: section[name] for name in names if name in section})
    except OptionError as error:
        yield from within([error], *where)


def _switch_faults(where: KeyPath, part: Any, valid: Collection[str]) -> Iterator[OptionError]:
    if not isinstance(part, dict):
        what = f"{subscripted(where)} is {part!r}"
        yield OptionError(what, "the value is not a dict", "Pass {'enabled': True}", where, "type")
        return
    for name in part:
        if name not in valid:
            yield _unknown(where, name, valid)
    if "enabled" in part:
        yield from _enabled_faults(where, part["enabled"])
    elif not set(part) - set(valid):
        yield OptionError(
            f"{subscripted(where)} has no 'enabled'",
            "SageMaker's SDK then ignores the whole key",
            "Add 'enabled': True, or leave the whole key out",
            about=where,
            kind="missing",
        )
    processes = part.get("processes_per_host")  # None has the meaning of a missing key
    if (
        not is_pipeline_variable(processes)
        and processes is not None
        and not _is_positive(processes)
    ):
        yield OptionError(
            f"{subscripted(where)} has processes_per_host={processes!r}",
            "a host starts at least one rank" if type(processes) is int else "it is not an integer",
            "Pass an integer of at least 1",
            about=(*where, "processes_per_host"),
        )
    further = part.get(MPI_OPTIONS, "")
    if not is_pipeline_variable(further) and not isinstance(further, str):
        yield OptionError(
            f"{subscripted(where)} has custom_mpi_options={further!r}",
            "it is appended to mpirun's command line and must be a str",
            "Pass one str such as '-x NCCL_DEBUG=INFO'",
            about=(*where, MPI_OPTIONS),
            kind="type",
        )


def _enabled_faults(where: KeyPath, enabled: Any) -> Iterator[OptionError]:
    if not is_pipeline_variable(enabled) and type(enabled) is not bool:
        yield OptionError(
            f"{subscripted(where)} has enabled={enabled!r}",
            "SageMaker's SDK treats every non-empty string as True"
            if isinstance(enabled, str)
            else "it is not a bool",
            "Pass True or False",
            about=(*where, "enabled"),
            kind="type",
        )


def _list_faults(where: KeyPath, part: Any) -> Iterator[OptionError]:
    if not isinstance(part, (list, tuple)):
        yield OptionError(
            f"{subscripted(where)} is {part!r}",
            "it is not a list of instance groups",
            "Pass a list with one group, such as [group]",
            about=where,
            kind="type",
        )
        return
    for each in part:
        name = getattr(each, "instance_group_name", each)
        if not isinstance(name, str):
            known = "a pipeline variable" if is_pipeline_variable(name) else f"{name!r}"
            yield OptionError(
                f"{subscripted(where)} has a group whose name is {known}",
                "the name of an instance group is a str",
                "Pass the group's name as a str",
                about=where,
                kind="type",
            )


def _is_positive(value: object) -> bool:
    return type(value) is int and value >= 1


def _unknown(where: KeyPath, key: object, valid: Collection[str]) -> OptionError:
    known = _HINTS.get(str(key).lower()) if where == ("distribution",) else None
    hint = known or closest(str(key), valid)
    return OptionError(
        f"{subscripted(where)} has the key {key!r}",
        "no such key exists",
        hint,
        about=(*where, str(key)),
        kind="unknown",
    )
