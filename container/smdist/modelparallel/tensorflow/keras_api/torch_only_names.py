# SPDX-License-Identifier: Apache-2.0
"""Names of SMP v1 that have no meaning for Keras models: each use raises an error with a hint."""

from __future__ import annotations

from typing import Final, NoReturn

from sagemaker_dist.errors import OptionError

_OPTIMIZER: Final = (
    "SMP has it for PyTorch alone",
    "Use the optimizer of Keras itself, in model.compile(optimizer=)",
)
_TENSORS: Final = (
    "layers of Keras are not split over ranks",
    "Use pipeline_parallel_degree, or a PyTorch model with smdist.modelparallel.torch",
)
_FILES: Final = (
    "SMP has it for PyTorch alone",
    "Use model.save and model.load_checkpoint, or smp.CheckpointManager",
)
_GROUPS: Final = (
    "process groups are objects of torch.distributed",
    "Use smp.get_pp_group() and so on, which return lists of ranks",
)
_ACTIVATIONS: Final = (
    "SMP has it for PyTorch alone",
    "Use more microbatches, which makes the activations of each smaller",
)
_REFUSED: Final[dict[str, tuple[str, str]]] = {
    "DistributedOptimizer": _OPTIMIZER,
    "amp": ("Keras has dtype policies", 'Use keras.config.set_dtype_policy("mixed_bfloat16")'),
    "nn": _TENSORS,
    "tensor_parallelism": _TENSORS,
    "set_tensor_parallelism": _TENSORS,
    "tp_register": _TENSORS,
    "tp_register_with_module": _TENSORS,
    "save": _FILES,
    "load": _FILES,
    "save_checkpoint": _FILES,
    "resume_from_checkpoint": _FILES,
    "set_activation_checkpointing": _ACTIVATIONS,
    **{f"get_{kind}_process_group": _GROUPS for kind in ("world", "pp", "mp", "tp", "dp", "rdp")},
}


def refuse_name(name: str, module: str) -> NoReturn:
    """Raise the error for a name that a module lacks.

    Raises:
        OptionError: The name is one of SMP v1.
        AttributeError: The name is no name of SMP v1.
    """
    if name not in _REFUSED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    why, hint = _REFUSED[name]
    raise OptionError(
        f"smp.{name} does not work with Keras models", why, hint, about=("smp", name),
        kind="unsupported",
    )  # fmt: skip
