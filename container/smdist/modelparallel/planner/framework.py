# SPDX-License-Identifier: Apache-2.0
"""Framework of the user's model: torch, or Keras on TensorFlow. Neither is imported needlessly."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

_KERAS: Final = frozenset({"keras", "tensorflow"})
_LOADED: Final = "keras"  # tensorflow imports it when tf.keras is used


def imports_keras(path: Path) -> bool:
    """Tell whether a Python file imports Keras or TensorFlow; False if it cannot be read."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, ValueError, SyntaxError):
        return False
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module).partition(".")[0])
    return bool(names & _KERAS)


def is_keras(value: Any) -> bool:
    """Tell whether a value is a model of Keras."""
    keras = sys.modules.get(_LOADED)
    return keras is not None and isinstance(value, keras.Model)


def fastest_device() -> str:
    """Return torch's name of this machine's accelerator for measurements, or "cpu"."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else str(found)


@contextmanager
def building(*, with_values: bool) -> Iterator[None]:
    """Build models of either framework within this context.

    Args:
        with_values: False to allocate no memory for weights.
    """
    with ExitStack() as stack:
        has_keras = _LOADED in sys.modules
        if "torch" in sys.modules or not has_keras:
            import torch

            stack.enter_context(torch.device(fastest_device() if with_values else "meta"))
        if has_keras and not with_values:
            from smdist.modelparallel.tensorflow.keras_capture.delayed_values import (
                delay_param_initialization,
            )

            stack.enter_context(delay_param_initialization())
        yield
