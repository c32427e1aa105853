# SPDX-License-Identifier: Apache-2.0
"""Translations of a state dict that change nothing, for scripts of SMP v1 that call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

State = TypeVar("State", bound=Mapping[str, object])


def to_hf(state_dict: State, max_seq_len: int | None = None) -> State:  # noqa: ARG001  SMP's
    """Return a state dict with Hugging Face's names, which it has already.

    Args:
        state_dict: State dict of the whole model, such as `model.state_dict()`.
        max_seq_len: No effect: in SMP, the size of masks, which transformers does not store.
    """
    return state_dict


def from_hf(state_dict: State) -> State:
    """Return a state dict for `model.load_state_dict`, which takes Hugging Face's names.

    Args:
        state_dict: State dict of a model of Hugging Face.
    """
    return state_dict
