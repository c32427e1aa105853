# SPDX-License-Identifier: Apache-2.0
"""State dicts of an optimizer whose parameters are on several ranks: of all ranks, or of one rank.

PyTorch's state dict identifies parameters only by numbers; these state dicts have the parameters'
names, too. So a rank can find the state of its own parameters in the whole state dict, and can
refuse the state dict of another rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.manifest import Group, OptimizerState
from smdist.modelparallel.torch.checkpoint.gather_values import gathered, team_of
from smdist.modelparallel.torch.checkpoint.local_values import LocalValues, local_values_of
from smdist.modelparallel.torch.checkpoint.optimizer_values import (
    put,
    state_key,
    state_of,
    trained,
    values_of,
)
from smdist.modelparallel.torch.checkpoint.team import Team
from smdist.modelparallel.torch.parallel.optimizers import spread

NAMES: Final = "_smp_names"  # names of parameters by group, in order of their numbers
LOSS_SCALE: Final = "_smp_loss_scale"  # state of the loss scale
MASTERS: Final = "_smp_master_weights"  # float32 master weights by the names of parameters
_HINT: Final = "Load a result of state_dict(), or of local_state_dict() with the same stages"


def whole_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Gather the optimizer state of all stages, with parameters numbered as in the whole model.

    All ranks of a replica have to call this. If parameters are sharded over replicas, all ranks of
    the world have to call it.

    Args:
        optimizer: PyTorch's optimizer of this rank's parameters.
        model: The split model.

    Returns:
        State dict in PyTorch's form; the additional key "_smp_names" has the parameters' names, and
        "_smp_master_weights" the master weights, if there are any.
    """
    holding = local_values_of(model)
    team, names = team_of(holding), holding.names()
    state = state_of(optimizer, names, team)
    values = _gathered(values_of(optimizer, names), team)
    masters = _gathered(_masters(holding), team)
    order = {entry.name: number for number, entry in enumerate(holding.entries)}
    listed = [sorted(group.names, key=order.__getitem__) for group in state.groups]
    flat = [name for each in listed for name in each]
    number = {name: at for at, name in enumerate(flat)}
    return {
        "state": {
            number[name]: {key: values[state_key(name, key)] for key in state.keys[name]}
            for name in flat
            if state.keys.get(name)
        },
        "param_groups": [
            {**group.options, "params": [number[name] for name in each]}
            for group, each in zip(state.groups, listed, strict=True)
        ],
        NAMES: listed,
        **({MASTERS: masters} if masters else {}),
    }


def _gathered(values: dict[str, Any], team: Team) -> dict[str, Any]:
    """Return the values of all ranks of a team, copied, so that all are of one moment."""
    return {
        key: value.clone() if isinstance(value, Tensor) else value
        for key, value in gathered(values, team, to_rank0=False)
    }


def _masters(holding: LocalValues) -> dict[str, Any]:
    """Return the master weights of this rank by name; {} if there are none."""
    masters = holding.masters
    found = {} if masters is None else {n: masters.of(p) for n, p in holding.parameters().items()}
    return {name: holding.values[name] for name, each in found.items() if each is not None}


def local_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state dict of this rank's optimizer.

    In addition to PyTorch's keys, "_smp_names" has the parameters' names, and "_smp_is_partial" is
    True.

    Args:
        optimizer: PyTorch's optimizer of this rank's parameters.
        model: The split model.
    """
    holding = local_values_of(model)
    names, masters = holding.names(), {}
    for name, parameter in holding.parameters().items():
        master = None if holding.masters is None else holding.masters.of(parameter)
        if master is not None:
            masters[name] = master.clone()
    listed = [[names[id(each)] for each in group["params"]] for group in optimizer.param_groups]
    more = {MASTERS: masters} if masters else {}
    return {**optimizer.state_dict(), NAMES: listed, **more, "_smp_is_partial": True}


def load_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, values: Mapping[str, Any]
) -> None:
    """Load the state of this rank's parameters from a state dict.

    Args:
        optimizer: PyTorch's optimizer, which is changed.
        model: The split model.
        values: Result of `whole_state`, or of `local_state` for the same stages.

    Raises:
        OptionError: The state dict has no parameter names, lacks one of this rank's parameters, or
            has another number of parameter groups than the optimizer.
    """
    holding = local_values_of(model)
    parameters = dict(trained(optimizer, holding.names()))
    raise_all(_faults(optimizer, values, parameters, holding))
    saved = _saved(optimizer, values)
    flat = {name: each for name, each in _by_name(values) if name in parameters}
    found = {
        state_key(name, key): _copied(value, parameters[name])
        for name, each in flat.items()
        for key, value in each.items()
    }
    put(optimizer, parameters, saved, found)
    for group, own in zip(values["param_groups"], optimizer.param_groups, strict=True):
        own.update({key: value for key, value in group.items() if key != "params"})
    masters = values.get(MASTERS, {})
    for name, parameter in holding.parameters().items():
        if holding.masters is not None and name in masters:
            holding.masters.load(parameter, spread(masters[name], parameter))


def _saved(optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> OptimizerState:
    return OptimizerState(
        kind=type(optimizer).__name__,
        options=tuple(sorted(optimizer.defaults)),
        groups=tuple(Group(names=tuple(names), options={}) for names in values[NAMES]),
        keys={name: tuple(each) for name, each in _by_name(values)},
    )


def _by_name(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for group, names in zip(values["param_groups"], values[NAMES], strict=True):
        for number, name in zip(group["params"], names, strict=True):
            yield name, values["state"].get(number, {})


def _copied(value: Any, parameter: nn.Parameter) -> Any:
    return spread(value.detach().clone(), parameter) if isinstance(value, Tensor) else value


def _faults(
    optimizer: torch.optim.Optimizer,
    values: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    holding: LocalValues,
) -> Iterator[OptionError]:
    if NAMES not in values:
        why = "parameters are on several ranks, where their numbers are ambiguous"
        what = "the optimizer's state has no names of parameters"
        yield OptionError(what, why, _HINT, about=NAMES, kind="missing")
        return
    count = len(optimizer.param_groups)
    if len(values[NAMES]) != count:
        what = f"the optimizer's state has {len(values[NAMES])} groups"
        why = f"the optimizer has {count} groups"
        yield OptionError(what, why, _HINT, about="param_groups", kind="difference")
        return
    known = {name for names in values[NAMES] for name in names}
    missing = [entry.name for entry in holding.entries if entry.name in parameters]
    missing = [name for name in missing if name not in known]
    if missing:
        what = f"the optimizer's state has no entry for {missing[0]!r}"
        more = f" and {len(missing) - 1} more parameters" if len(missing) > 1 else ""
        why = "this rank's stages have these parameters" if more else "this rank's stages have it"
        yield OptionError(f"{what}{more}", why, _HINT, about=missing[0], kind="missing")
