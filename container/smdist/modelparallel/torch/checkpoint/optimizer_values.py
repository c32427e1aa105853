# SPDX-License-Identifier: Apache-2.0
"""State of an optimizer, stored under the names of its parameters.

PyTorch numbers parameters in the order in which they were passed to the optimizer. That order
differs between ranks and between layouts; names do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor, Replicate

from smdist.modelparallel.core.manifest import Group, OptimizerState, options_for
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.team import Team
from smdist.modelparallel.torch.checkpoint.tensor_parts import exposed, part_for, target_for
from smdist.modelparallel.torch.replicas.host_update import at_home, empty_at_home

PREFIX = "optimizer.state."
_STEP = "step"  # counts steps, in a dtype of its own
_NOT_OPTIONS = ("params", "param_names")


def state_key(name: str, key: str) -> str:
    """Return the key in a checkpoint for the optimizer's value `key` of the parameter `name`.

    For example "optimizer.state.wte.weight.exp_avg", as in PyTorch's flattened state dicts.
    """
    return f"{PREFIX}{name}.{key}"


def values_of(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the optimizer's state values on this rank, by their keys in a checkpoint.

    Args:
        optimizer: PyTorch's optimizer.
        names: Name of each parameter in the model, by the parameter's id; for a tied parameter,
            the first of its names.
    """
    return {
        state_key(names[id(parameter)], key): exposed(value, parameter)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def state_of(optimizer: Any, names: Mapping[int, str], team: Team) -> OptimizerState:
    """Return a description of the optimizer's state on all ranks; all ranks have to call it.

    Args:
        optimizer: PyTorch's optimizer.
        names: Name in the model of each parameter on this rank, by the parameter's id; for a tied
            parameter, the first of its names.
        team: All ranks that take part in the checkpoint.

    Raises:
        CheckpointError: A parameter is not in the model, or the ranks have different numbers of
            parameter groups.
    """
    mine = team.do(
        "the optimizer has parameters that are not in the model",
        lambda: tuple(_group(group, names) for group in optimizer.param_groups),
        hint="Make the optimizer with model.parameters() of the model that you pass",
    )
    keys = {names[id(p)]: tuple(state) for p, state in optimizer.state.items() if id(p) in names}
    gathered = team.gather((mine, keys))
    groups = [each for each, _ in gathered]
    if len({len(each) for each in groups}) > 1:
        counts = ", ".join(str(len(each)) for each in groups)
        raise CheckpointError(
            f"the optimizers of the ranks have {counts} parameter groups",
            "the optimizer needs the same groups on all ranks, some of which may be empty",
            "Make the optimizer with the same groups on every rank",
            about="optimizer",
        )
    return OptimizerState(
        kind=type(optimizer).__name__,
        options=tuple(sorted(optimizer.defaults)),
        groups=tuple(map(_merged, zip(*groups, strict=True))),
        keys={name: found for _, of in gathered for name, found in of.items()},
    )


def _group(group: Mapping[str, Any], names: Mapping[int, str]) -> Group:
    strange = sum(id(parameter) not in names for parameter in group["params"])
    if strange:
        raise CheckpointError(
            f"{strange} parameters of the optimizer are not in the model",
            "optimizer state is saved and loaded by the names of parameters in the model",
            "Make the optimizer with model.parameters() of the model that you pass",
            about="optimizer",
            kind="unknown",
        )
    options = {key: value for key, value in group.items() if key not in _NOT_OPTIONS}
    return Group(names=tuple(names[id(p)] for p in group["params"]), options=options)


def _merged(of_ranks: tuple[Group, ...]) -> Group:
    names = dict.fromkeys(name for group in of_ranks for name in group.names)
    source = next((group for group in of_ranks if group.names), of_ranks[0])
    return Group(names=tuple(names), options=source.options)


def targets(
    parameters: Mapping[str, nn.Parameter],
    saved: OptimizerState,
    stored: Metadata | Mapping[str, Any],
    dtypes: Mapping[str, str],
) -> dict[str, Any]:
    """Return empty tensors into which optimizer state is loaded, by key in the checkpoint.

    The result has None for a value that is no tensor.

    Args:
        parameters: Parameters of the optimizer on this rank, by their names in the checkpoint.
        saved: Names of the optimizer's values in the checkpoint.
        stored: Shapes and types: PyTorch's metadata of the checkpoint, or the values by key.
        dtypes: PyTorch's name of the dtype of each parameter in the checkpoint, by its name.
    """
    facts = stored.state_dict_metadata if isinstance(stored, Metadata) else stored
    return {
        state_key(name, key): _target(
            parameter, facts[state_key(name, key)], "" if key == _STEP else dtypes.get(name, "")
        )
        for name, parameter in parameters.items()
        for key in saved.keys.get(name, ())
    }


def _target(parameter: nn.Parameter, stored: Any, saved_dtype: str) -> Any:
    """Return an empty tensor to load one value of the optimizer's state into.

    The tensor is on the CPU. If the parameter is sharded, the tensor is sharded in the same way.

    Args:
        parameter: Parameter to which the value belongs.
        stored: The value in the checkpoint, or its metadata.
        saved_dtype: Dtype of the parameter in the checkpoint. A value of this dtype, such as a mean
            of gradients, gets the dtype that the parameter has now.

    Returns:
        The tensor; None for a value that is no tensor.
    """
    if isinstance(stored, TensorStorageMetadata):
        shape, dtype = stored.size, stored.properties.dtype
    elif isinstance(stored, Tensor):
        shape, dtype = stored.shape, stored.dtype
    else:
        return None
    has_own_dtype = str(dtype) == f"torch.{saved_dtype}"
    if has_own_dtype and parameter.dtype in (torch.float32, torch.float64):
        dtype = parameter.dtype  # one of 16 bits may have a master weight of 32
    if isinstance(parameter, DTensor) and shape == parameter.shape:
        return empty_at_home(parameter, dtype)
    part = target_for(parameter, torch.Size(shape), dtype)
    return torch.empty(shape, dtype=dtype) if part is None else part


def put(
    optimizer: Any,
    parameters: Mapping[str, nn.Parameter],
    saved: OptimizerState,
    values: Mapping[str, Any],
) -> None:
    """Replace the optimizer's state of some parameters.

    Args:
        optimizer: PyTorch's optimizer, which is changed.
        parameters: Parameters on this rank, by their names in the checkpoint.
        saved: Names of the optimizer's values in the checkpoint, such as "exp_avg".
        values: New values of the optimizer, by key in the checkpoint.
    """
    options = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in parameters.items():
        found = {key: values[state_key(name, key)] for key in saved.keys.get(name, ())}
        optimizer.state.pop(parameter, None)
        if found:
            group = options[id(parameter)]
            placed = {key: _placed(key, v, parameter, group) for key, v in found.items()}
            optimizer.state[parameter] = placed


def _placed(key: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """Return a value of a parameter's state on the device where the optimizer would create it.

    Step counters stay on the CPU, unless the group has the option "capturable" or "fused".

    Args:
        key: Name of the value, such as "exp_avg" or "step".
        value: The value.
        parameter: The parameter.
        group: The optimizer's parameter group that contains the parameter.
    """
    value = part_for(value, parameter)
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        return at_home(value, parameter)
    if key == _STEP:
        counts_there = group.get("capturable") or group.get("fused")
        return at_home(value, parameter) if counts_there else value
    if isinstance(parameter, DTensor) and value.dim():
        value = value.to(parameter.device)
    else:
        value = at_home(value, parameter)
    if isinstance(parameter, DTensor) and value.dim():
        mesh = parameter.device_mesh
        return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return value


def put_options(optimizer: Any, saved: OptimizerState, groups: tuple[Group, ...]) -> None:
    """Set the options of every parameter group, such as the learning rate, to the saved ones.

    A group gets the options that its parameters had when they were saved. If these parameters had
    different options, the group's options stay unchanged.

    A group without parameters gets the options of the saved group with the same index. If the
    number of groups has changed, its options stay unchanged.

    Args:
        optimizer: The optimizer to change.
        saved: Saved optimizer state, with the saved groups and their options.
        groups: Groups of the optimizer, with parameter names as in the checkpoint.
    """
    for number, (group, own) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        found = options_for(saved, own, number, len(groups))
        for key, value in (found or {}).items():
            _set(group, key, value)


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    now = group.get(key)
    if isinstance(now, Tensor) and isinstance(value, Tensor | float | int):
        now.fill_(value)  # compiled and captured steps read this tensor, so it must stay
    else:
        group[key] = value


def renamed(state: OptimizerState, names: Mapping[str, str]) -> OptimizerState:
    """Return a copy of a description of optimizer state, with other names of parameters.

    Args:
        state: Description with the names in the model.
        names: Names in the checkpoint, by the names in the model.
    """
    groups = tuple(
        Group(names=tuple(names.get(n, n) for n in each.names), options=each.options)
        for each in state.groups
    )
    keys = {names.get(name, name): of for name, of in state.keys.items()}
    return OptimizerState(kind=state.kind, options=state.options, groups=groups, keys=keys)


def trained(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the name in the model and the parameter, for each parameter that the optimizer has.

    Args:
        optimizer: PyTorch's optimizer, which has parameters of this rank.
        names: Name in the model of each parameter on this rank, by the parameter's id; for a tied
            parameter, the first of its names.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield names[id(parameter)], parameter
