# SPDX-License-Identifier: Apache-2.0
"""Mark of modules that are split over ranks, and the options that SMP v1 takes beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.program.module_marks import ModuleMark

SPLIT_MARK: Final[ModuleMark[bool]] = ModuleMark("_smp_tensor_parallelism")

# Features of SMP v1's own layers that a script turns on or off (AWS's reference of SMP v1 and its
# GPT examples, read 2026-11-27). None is here, so False is what a script gets, and True is refused.
_FEATURES: Final = frozenset({
    "attention_in_fp32", "distribute_embedding", "flash_attention", "fp32_residual_addition",
    "fused_bias_gelu", "fused_dropout", "fused_softmax", "query_key_layer_scaling", "use_alibi",
    "zero_init",
})  # fmt: skip


def option_faults(function: str, options: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield an error for each option of SMP's own layers that a script does not turn off.

    Args:
        function: Name of the function that got the options, such as "smp.tensor_parallelism".
        options: Options by name.
    """
    for name, value in options.items():
        if name in _FEATURES and value is False:
            continue
        yield OptionError(
            f"{function} got {name}={value!r}",
            "it is an option of SMP's own layers, and modules are split as they are here",
            f"Leave {name} out, and make this setting in the model itself",
            about=name,
            kind="unsupported",
        )
