# SPDX-License-Identifier: Apache-2.0
"""Elastic training: the hosts that are left go on when a host is lost.

    import smdist.dataparallel.torch
    from smdist import elastic

    torch.distributed.init_process_group("smdist")
    sampler = elastic.ElasticSampler(len(dataset))
    state = elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    elastic.run(train, state)

`run` calls `train(state)`. When a host is lost, it restores the last state that was committed, on
all ranks that are left, and calls `train(state)` again. The page "Elastic training" has whole
loops for torch and for Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smdist.elastic.elastic_error import ElasticError
from smdist.elastic.elastic_sampler import ElasticSampler
from smdist.elastic.run import run
from smdist.elastic.state import Change, State, scale_linearly

if TYPE_CHECKING:
    from smdist.elastic.keras_state import KerasState
    from smdist.elastic.torch_state import TorchState

__all__ = [
    "Change",
    "ElasticError",
    "ElasticSampler",
    "KerasState",
    "State",
    "TorchState",
    "run",
    "scale_linearly",
]


def __getattr__(name: str) -> Any:
    """Return TorchState or KerasState; only this imports their framework.

    Raises:
        AttributeError: The module has no attribute of this name.
    """
    if name == "TorchState":
        from smdist.elastic.torch_state import TorchState

        return TorchState
    if name == "KerasState":
        from smdist.elastic.keras_state import KerasState

        return KerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
