# SPDX-License-Identifier: Apache-2.0
"""Loading of state dicts into the part of a model that this rank has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch.parallel.model_state import ModelState

PLAN: Final = "_smp_plan"  # key in the state dict of one rank: the plan that cut the model


def load(state: ModelState, values: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a whole state dict, or one with at least the values of this rank.

    Before the cut, a whole state dict goes into the user's model. Loading waits for the cut if the
    model is on meta or the state dict is partial.

    Raises:
        OptionError: A value is missing, or has another shape.
    """
    plain = {key: value for key, value in values.items() if not key.startswith("_smp_")}
    if PLAN in values and state.split is None:
        state.cut_by(Plan.from_document(values[PLAN], where="the plan of this state dict"))
    is_partial = bool(values.get("_smp_is_partial"))
    on_meta = any(each.is_meta for each in state.model.parameters())
    if state.split is not None:
        _into(state, plain, strict)
    elif is_partial or on_meta:
        state.when_cut(lambda: _into(state, plain, strict), loads=True)
    else:
        return state.model.load_state_dict(plain, strict=strict)
    return torch.nn.modules.module._IncompatibleKeys([], [])


def _into(state: ModelState, values: Mapping[str, Any], strict: bool) -> None:
    own = state.local_values()
    missing = [name for name in own if name not in values] if strict else []
    shaped = {name: t for name, t in own.items() if isinstance(t, Tensor) and name in values}
    wrong = [name for name, t in shaped.items() if t.shape != values[name].shape]
    raise_all(
        [
            *(_fault(f"{n!r} is missing", "this rank has it in its stages") for n in missing),
            *(
                _fault(
                    f"{n!r} has the shape {tuple(values[n].shape)}", f"here {tuple(own[n].shape)}"
                )
                for n in wrong
            ),
        ]
    )
    with torch.no_grad():
        for name, tensor in shaped.items():
            _copy(tensor, values[name])


def _copy(tensor: Tensor, value: Tensor) -> None:
    if isinstance(tensor, DTensor) and not isinstance(value, DTensor):
        value = distribute_tensor(
            value.to(tensor.device, tensor.dtype), tensor.device_mesh, tensor.placements
        )
    tensor.copy_(value)


def _fault(what: str, why: str) -> OptionError:
    return OptionError(what, why, "Load the state dict of this model, or of the same stages")
