# SPDX-License-Identifier: Apache-2.0
"""Loading of a state dict into a model that is, or will be, split into stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch.parallel.model_state import ModelState
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights
from smdist.modelparallel.torch.tensor_splits import split_of, whole_shape_of

PLAN: Final = "_smp_plan"  # key of the plan in the state dict of one rank


def load(state: ModelState, values: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a state dict of the whole model, or of one rank's stages.

    If the model is already split into stages, this rank's values are loaded now. If not, a state
    dict of the whole model is loaded into the user's model now. For a model on the meta device, and
    for a state dict of one rank, values are loaded as soon as the model is split.

    Args:
        state: State of the parallel model.
        values: Parameters and buffers by name.
        strict: False to ignore parameters and buffers of this rank that are not in `values`.

    Returns:
        Missing and unexpected names, as from `torch.nn.Module.load_state_dict`. Both are empty,
        unless the values were loaded into the user's model.

    Raises:
        OptionError: A value is missing, or has another shape.
    """
    plain = {key: value for key, value in values.items() if not key.startswith("_smp_")}
    if PLAN in values and state.split is None:
        state.cut_by(Plan.from_document(values[PLAN], where="the plan in this state dict"))
    is_wide = state.settings.converted_dtype is not None
    is_partial = bool(values.get("_smp_is_partial"))
    on_meta = any(each.is_meta for each in state.model.parameters())
    if state.split is not None:
        _into(state, plain, strict)
    elif is_partial or on_meta:
        state.when_cut(lambda: _into(state, plain, strict), loads=True)
    else:
        if is_wide:  # the model rounds the values, and master weights get them whole
            state.when_cut(lambda: _into(state, plain, strict=False))
        return state.model.load_state_dict(plain, strict=strict)
    return torch.nn.modules.module._IncompatibleKeys([], [])


def _into(state: ModelState, values: Mapping[str, Any], strict: bool) -> None:
    """Copy values into the parameters and buffers of this rank, after a check of names and shapes.

    Args:
        state: State of the parallel model.
        values: Parameters and buffers by name.
        strict: False to ignore parameters and buffers of this rank that are not in `values`.

    Raises:
        OptionError: A value is missing, or has another shape.
    """
    own = state.local_values(keep_vars=True)
    missing = [name for name in own if name not in values] if strict else []
    shaped = {name: t for name, t in own.items() if isinstance(t, Tensor) and name in values}
    wrong = [
        name for name, t in shaped.items() if _shape_for(t, values[name]) != values[name].shape
    ]
    faults = [
        _fault(
            f"{name!r} is missing in the state dict",
            "the model has a parameter or buffer of this name on this rank",
            name,
            "missing",
        )
        for name in missing
    ]
    faults += [
        _fault(
            f"{name!r} has the shape {tuple(values[name].shape)} in the state dict",
            f"in the model, its shape is {tuple(whole_shape_of(own[name]))}",
            name,
            "shape",
        )
        for name in wrong
    ]
    raise_all(faults)
    with torch.no_grad():
        for name, tensor in shaped.items():
            _copy(tensor, values[name], state.masters)


def _copy(tensor: Tensor, value: Tensor, masters: MasterWeights | None) -> None:
    """Copy a value into a tensor, and into its master weight if it has one.

    If the tensor is sharded (a DTensor) and the value is not, only this rank's part of the value is
    copied.

    Args:
        tensor: Parameter or buffer of this rank.
        value: New value: of the whole tensor, or of this rank's part.
        masters: Master weights of this rank; None if there are none.
    """
    split = split_of(tensor)
    if split is not None and split.fits(value, tensor):
        value = split.part(value)
    if isinstance(tensor, DTensor) and not isinstance(value, DTensor):
        value = distribute_tensor(
            value.to(tensor.device, tensor.dtype), tensor.device_mesh, tensor.placements
        )
    if masters is None or not masters.load(tensor, value):
        tensor.copy_(value)


def _shape_for(tensor: Tensor, value: Tensor) -> torch.Size:
    """Return the shape that a value needs: of the whole tensor, or of this rank's part.

    Args:
        tensor: Tensor to fill.
        value: The value. If it has the shape of this rank's part, it is taken for this part.
    """
    return tensor.shape if value.shape == tensor.shape else whole_shape_of(tensor)


def _fault(what: str, why: str, name: str, kind: str) -> OptionError:
    """Return the error for one parameter or buffer that cannot be loaded.

    Args:
        what: Text that says what is wrong in the state dict.
        why: Text that says why it is wrong.
        name: Name of the parameter or buffer.
        kind: Kind of the error.
    """
    hint = "Load a state dict of the same model: of the whole model, or of this rank's stages"
    return OptionError(what, why, hint, about=name, kind=kind)
