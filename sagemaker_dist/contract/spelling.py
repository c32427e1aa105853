# SPDX-License-Identifier: Apache-2.0
"""The keys of a `distribution=`, and what is wrong with a dict of them.

SageMaker's SDK ignores a key that it does not know, and a strategy that nobody
switched on: the job then runs on one process per host. Here both are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.contract.opening import is_open
from sagemaker_dist.contract.options import DataParallel
from sagemaker_dist.errors import OptionError, closest

OURS: Final = "smdist"
AWS: Final = "smdistributed"
GROUPS: Final = "instance_groups"
STOCK: Final = ("torch_distributed", "pytorchddp")  # SageMaker's keys that our launcher serves, too
STRATEGY_KEYS: Final = ("parameter_server", "multi_worker_mirrored_strategy")  # and TensorFlow's
DATA: Final = "dataparallel"
MODEL: Final = "modelparallel"
MPI_OPTIONS: Final = "custom_mpi_options"
_SWITCHES: Final = {  # SageMaker SDK 2.257.7, fw_utils.py and estimator.py: key to its own keys
    "torch_distributed": ("enabled",),
    "pytorchddp": ("enabled", MPI_OPTIONS),
    "pytorchxla": ("enabled",),
    "mpi": ("enabled", "processes_per_host", "custom_mpi_options"),
    "parameter_server": ("enabled",),
    "multi_worker_mirrored_strategy": ("enabled",),
}
STRATEGIES: Final = (OURS, AWS, *_SWITCHES)
_AWS_SWITCHES: Final = {
    DATA: ("enabled", MPI_OPTIONS),
    MODEL: ("enabled", "parameters"),
}
OPTIONS: Final = {  # of our strategies, by key
    DATA: tuple(option.name for option in fields(DataParallel)),
    MODEL: tuple(option.name for option in fields(ModelParallel)),
}
KINDS: Final[Mapping[str, type[DataParallel] | type[ModelParallel]]] = {
    DATA: DataParallel,
    MODEL: ModelParallel,
}
_IN_SCRIPT: Final = "The script sets it up by itself: pass {'torch_distributed': {'enabled': True}}"
_MENDS: Final = {  # of keys that are no distribution
    **dict.fromkeys(("accelerate", "ddp", "deepspeed", "fsdp", "lightning"), _IN_SCRIPT),
    "horovod": (
        "Pass DataParallel(), and in a script for TensorFlow"
        " import smdist.dataparallel.tensorflow.keras as hvd"
    ),
}


def spelling_faults(value: Mapping[str, Any]) -> Iterator[OptionError]:
    """Unknown keys and values of the wrong kind in the dict form of a `distribution=`."""
    valid = {OURS, AWS, GROUPS, *_SWITCHES}
    for key, part in value.items():
        where = f"distribution[{key!r}]"
        if key not in valid:
            yield _unknown("distribution", key, valid)
        elif key == GROUPS:
            yield from _list_faults(where, part)
        elif key in _SWITCHES:
            yield from _switch_faults(where, part, _SWITCHES[key])
        else:
            yield from _section_faults(key, part)
    if OURS in value and isinstance(value.get(AWS), dict) and DATA in value[AWS]:
        yield OptionError(
            f"distribution has both {OURS!r} and {AWS!r}",
            "both ask for data parallelism",
            f"Keep {OURS!r}",
        )


def _section_faults(key: str, part: Any) -> Iterator[OptionError]:
    where = f"distribution[{key!r}]"
    if not isinstance(part, dict) or not all(isinstance(each, dict) for each in part.values()):
        yield OptionError(
            f"{where} is {part!r}",
            "a strategy is a dict of dicts",
            f"Pass {{{key!r}: {{{DATA!r}: {{'enabled': True}}}}}}",
        )
        return
    valid = _AWS_SWITCHES if key == AWS else OPTIONS
    for name in part:
        if name not in valid:
            yield _unknown(where, name, valid)
        elif key == OURS:
            yield from _option_faults(f"{where}[{name!r}]", name, part[name])
        else:
            yield from _switch_faults(f"{where}[{name!r}]", part[name], valid[name])
    if not part:
        yield OptionError(f"{where} is empty", "it names no strategy", f"Name {DATA!r}")
    if len(set(part) & set(_AWS_SWITCHES)) > 1:
        yield OptionError(
            f"{where} has both {DATA!r} and {MODEL!r}",
            "a job has one strategy of the two",
            "Keep one" if key == AWS else f"Keep {MODEL!r}, and pass the other as its 'engine'",
        )


def _option_faults(where: str, key: str, section: Mapping[str, Any]) -> Iterator[OptionError]:
    names = OPTIONS[key]
    for name in section:
        if name not in (*names, "enabled"):
            yield _unknown(where, name, (*names, "enabled"))
    yield from _enabled_faults(where, section.get("enabled", True))
    try:
        KINDS[key](**{name: section[name] for name in names if name in section})
    except OptionError as error:
        yield error


def _switch_faults(where: str, part: Any, valid: Collection[str]) -> Iterator[OptionError]:
    if not isinstance(part, dict):
        yield OptionError(f"{where} is {part!r}", "it is no dict", "Pass {'enabled': True}")
        return
    for name in part:
        if name not in valid:
            yield _unknown(where, name, valid)
    if "enabled" in part:
        yield from _enabled_faults(where, part["enabled"])
    elif not set(part) - set(valid):
        yield OptionError(
            f"{where} has no 'enabled'",
            "SageMaker's SDK takes it for off",
            "Pass 'enabled': True, or leave it out as a whole",
        )
    processes = part.get("processes_per_host")  # None is left out, as for SageMaker's SDK
    if not is_open(processes) and processes is not None and not _is_positive(processes):
        yield OptionError(
            f"{where} has processes_per_host={processes!r}",
            "a host starts at least one rank" if type(processes) is int else "it is no integer",
            "Pass an integer of at least 1",
        )
    further = part.get(MPI_OPTIONS, "")
    if not is_open(further) and not isinstance(further, str):
        yield OptionError(
            f"{where} has custom_mpi_options={further!r}",
            "they are the words of a command line",
            "Pass one str such as '-x NCCL_DEBUG=INFO'",
        )


def _enabled_faults(where: str, enabled: Any) -> Iterator[OptionError]:
    if not is_open(enabled) and type(enabled) is not bool:
        yield OptionError(
            f"{where} has enabled={enabled!r}",
            "a string would count as true" if isinstance(enabled, str) else "it is no bool",
            "Pass True or False",
        )


def _list_faults(where: str, part: Any) -> Iterator[OptionError]:
    if not isinstance(part, (list, tuple)):
        yield OptionError(f"{where} is {part!r}", "it is no list", "Pass [group]")
        return
    for each in part:
        name = getattr(each, "instance_group_name", each)
        if not isinstance(name, str):
            known = "known to a pipeline alone" if is_open(name) else f"{name!r}"
            yield OptionError(
                f"{where} has a group whose name is {known}", "it is no text", "Name it"
            )


def _is_positive(value: object) -> bool:
    return type(value) is int and value >= 1


def _unknown(where: str, key: object, valid: Collection[str]) -> OptionError:
    known = _MENDS.get(str(key).lower()) if where == "distribution" else None
    mend = known or closest(str(key), valid)
    return OptionError(f"{where} has the key {key!r}", "no such key exists", mend)
