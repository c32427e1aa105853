# SPDX-License-Identifier: Apache-2.0
"""Options of `ModelParallel` that have no meaning for Keras models; each is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sagemaker_dist.contract.schedule_limits import SPLIT_BACKWARD
from sagemaker_dist.errors import OptionError

_POLICY: Final = 'Leave it out, and call keras.config.set_dtype_policy("mixed_bfloat16")'
# Options, the values that Keras models support, why not others, and a hint.
_ONLY: Final[tuple[tuple[str, tuple[Any, ...], str, str], ...]] = (
    ("tensor_parallel_degree", (1,), "layers of Keras are not split", "Pass 1, or leave it out"),
    ("sharding", ("none",), "replicas of a Keras model do not divide their state", "Leave it out"),
    (
        "shard_degree",
        (None,),
        "replicas of a Keras model do not divide their state",
        "Leave it out",
    ),
    (
        "gradient_reduction",
        ("auto", "step"),
        "replicas of a Keras model do not divide their state",
        "Leave it out",
    ),
    ("bf16", (False,), "Keras has dtype policies for this", _POLICY),
    ("fp16", (False,), "Keras has dtype policies for this", _POLICY.replace("bfloat", "float")),
    ("offload_activations", (False,), "activations stay on the device", "Leave it out"),
    ("activation_loading_horizon", (None,), "activations are not offloaded", "Leave it out"),
    ("offload_optimizer", (False,), "Keras's optimizer updates variables in place", "Leave it out"),
)
KERAS_SCHEDULES: Final = ("simple", "interleaved", "1f1b", "interleaved_1f1b", "looped_bfs")


def keras_faults(options: Any) -> Iterator[OptionError]:
    """Yield an error for each option of a `ModelParallel` that has no meaning for Keras models."""
    for name, allowed, why, hint in _ONLY:
        value = getattr(options, name)
        if value not in allowed:
            yield OptionError(f"{name} is {value!r}", why, hint, about=name, kind="unsupported")
    if options.pipeline in SPLIT_BACKWARD:
        yield OptionError(
            f"pipeline is {options.pipeline!r}",
            "tf.GradientTape computes the gradients of inputs and weights in one pass, and this"
            " schedule needs two",
            f"Use one of {', '.join(map(repr, KERAS_SCHEDULES))}",
            about="pipeline",
            kind="unsupported",
        )
