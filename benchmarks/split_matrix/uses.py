# SPDX-License-Identifier: Apache-2.0
"""Uses in which each model is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness.models import zoo

WITH_CACHE = ("gpt2", "llama", "t5", "mixtral", "whisper")
OF_TEXT = ("gpt2", "llama", "bert", "t5", "mixtral")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Use of a model.

    Attributes:
        make: Function that returns a new specimen, or None if the model does not have this use.
        around: Context manager for the forward pass.
        bound: Largest error that counts as equal.
        is_opened: Whether stages may begin and end inside blocks.
    """

    make: Callable[[str], zoo.Specimen | None]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    bound: float = 1e-6
    is_opened: bool = False


def _is_ours(name: str) -> bool:
    return name in ("unet", "dyn")


def _changed(name: str, change: Callable[[zoo.Specimen], Any]) -> zoo.Specimen:
    specimen = zoo.tiny(name)
    change(specimen)
    return specimen


def _with(name: str, **arguments: Any) -> zoo.Specimen | None:
    """Return a specimen whose batch has more keyword arguments."""
    if _is_ours(name):
        return None
    specimen = zoo.tiny(name)
    assert isinstance(specimen.batch, dict)
    return zoo.Specimen(model=specimen.model, batch={**specimen.batch, **arguments})


def _without_labels(name: str) -> zoo.Specimen | None:
    # t5 and whisper compute their decoder's input from labels
    if _is_ours(name) or name in ("t5", "whisper"):
        return None
    return _changed(name, lambda specimen: specimen.batch.pop("labels"))


def _by_position(name: str) -> zoo.Specimen | None:
    specimen = _without_labels(name)
    if specimen is None:
        return None
    first = next(iter(specimen.batch.values()))
    return zoo.Specimen(model=specimen.model, batch=(first,))


def _checkpointed(name: str) -> zoo.Specimen | None:
    specimen = zoo.tiny(name, dropout=0.1)
    if not getattr(specimen.model, "supports_gradient_checkpointing", False):
        return None
    specimen.model.activation_checkpointing_enable({"use_reentrant": False})
    return specimen


def _double(name: str) -> zoo.Specimen:
    def change(specimen: zoo.Specimen) -> None:
        specimen.model.double()

    specimen = _changed(name, change)
    return zoo.Specimen(model=specimen.model, batch=_doubled(specimen.batch))


def _doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _doubled(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_doubled, value))
    return value.double() if value.is_floating_point() else value


@contextmanager
def _autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


USES = {
    "train": Use(make=lambda name: zoo.tiny(name)),
    "dropout": Use(make=lambda name: zoo.tiny(name, dropout=0.1)),
    "blocks opened": Use(make=lambda name: zoo.tiny(name, dropout=0.1), is_opened=True),
    "eval": Use(make=lambda name: _changed(name, lambda specimen: specimen.model.eval())),
    "float64": Use(make=_double),
    "autocast to bfloat16": Use(make=lambda name: zoo.tiny(name), around=_autocast, bound=2e-2),
    "checkpointing": Use(make=_checkpointed),
    "loss outside": Use(make=_without_labels),
    "a tuple of results": Use(make=lambda name: _with(name, return_dict=False)),
    "hidden states": Use(make=lambda name: _with(name, output_hidden_states=True)),
    "by position": Use(make=_by_position),
    "cache": Use(
        make=lambda name: _with(name, use_cache=True) if name in WITH_CACHE else None,
    ),
    "padding": Use(
        make=lambda name: (
            _changed(name, lambda specimen: zoo.pad(specimen.batch)) if name in OF_TEXT else None
        ),
    ),
}
