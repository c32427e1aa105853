# SPDX-License-Identifier: Apache-2.0
"""Description of a model for the search of layouts: a list of layers with work and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.modelparallel.core.quantities import shown

_TEXTS: Final = frozenset({"name"})
_COUNTS: Final = frozenset({"num_parameters", "most_tensor_ranks", "tensor_messages"})
_SIZES: Final = frozenset({"forward_messages", "backward_messages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Layer of a model: its work and memory for one sample.

    Work is given as operations and bytes, or as seconds on the machine, or as both, which are
    added. The backward pass has twice the operations and bytes of the forward pass.

    Attributes:
        name: Name of the layer, shown in reports.
        num_parameters: Trained parameter elements.
        forward_flops: Floating-point operations of matrix products in the forward pass.
        attention_flops: Operations of the attention's two products of activations, which run at
            another efficiency than products with weights.
        moved_bytes: Bytes that the forward pass reads and writes apart from matrix products.
        forward_seconds: Seconds of the forward pass that are already known.
        backward_seconds: Seconds of the backward pass that are already known.
        fixed_forward_seconds: Known seconds of the forward pass of a microbatch, whatever its
            number of samples, such as to read weights.
        fixed_backward_seconds: The same for the backward pass.
        saved_bytes: Bytes of activations kept from the forward to the backward pass.
        selective_bytes: Bytes kept with selective checkpointing.
        selective_fraction: Fraction of the forward pass that selective checkpointing computes
            again.
        boundary_bytes: Bytes of the layer's output, which is also what full checkpointing keeps.
        fixed_saved_bytes: Bytes of activations kept for a microbatch, whatever its number of
            samples, such as a mask; selective checkpointing keeps them, too.
        workspace_bytes: Bytes that are in memory only while the layer runs.
        fixed_workspace_bytes: The same for a microbatch, whatever its number of samples, such as
            the new gradient of a weight.
        tensor_fraction: Fraction of work, parameters and activations that tensor parallelism
            divides among its ranks; 0 for a layer that it cannot split.
        tensor_messages: All-reduces of the layer's output in its forward pass, with tensor
            parallelism; the backward pass has as many.
        most_tensor_ranks: Largest number of ranks that can split the layer, such as the number of
            key-value heads; 0 for no limit.
        product_size: Smallest dimension of the layer's weights, for the efficiency of products.
        forward_messages: Bytes for each sample of every all-reduce in the forward pass of a layer
            that is split already, as in `LayerModel.split_layers`.
        backward_messages: The same for the backward pass.

    Raises:
        OptionError: A number is negative or not finite, or a fraction is above 1; all faults are
            reported.
    """

    name: str
    num_parameters: int = 0
    forward_flops: float = 0.0
    attention_flops: float = 0.0
    moved_bytes: float = 0.0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    fixed_forward_seconds: float = 0.0
    fixed_backward_seconds: float = 0.0
    saved_bytes: float = 0.0
    selective_bytes: float = 0.0
    selective_fraction: float = 0.5
    boundary_bytes: float = 0.0
    fixed_saved_bytes: float = 0.0
    workspace_bytes: float = 0.0
    fixed_workspace_bytes: float = 0.0
    tensor_fraction: float = 0.0
    tensor_messages: int = 0
    most_tensor_ranks: int = 0
    product_size: float = 4096.0
    forward_messages: tuple[float, ...] = ()
    backward_messages: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        raise_all(fault for name in fields(self) if (fault := self._fault(name.name)) is not None)

    def _fault(self, name: str) -> OptionError | None:
        """Return the error of one field, or None if its value is valid."""
        value = getattr(self, name)
        if name in _TEXTS:
            is_valid, hint = isinstance(value, str), "Pass text"
        elif name in _SIZES:
            is_valid = all(isinstance(each, int | float) and 0 <= each <= 1e30 for each in value)
            hint = "Pass a tuple of finite numbers of at least 0"
        elif isinstance(value, bool) or not isinstance(value, int | float):
            is_valid, hint = False, "Pass a number of at least 0"
        elif name in _COUNTS:
            is_valid = isinstance(value, int) and value >= 0
            hint = "Pass an integer of at least 0"
        else:
            most = 1.0 if name.endswith("_fraction") else 1e30
            is_valid = 0 <= value <= most
            hint = (
                "Pass a number from 0 to 1" if most == 1 else "Pass a finite number of at least 0"
            )
        if is_valid:
            return None
        what, why = f"{name} of a layer is {shown(value)}", "the costs of layouts depend on it"
        return OptionError(what, why, hint, about=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerModel:
    """Model as a chain of layers, for the search of layouts.

    Attributes:
        name: Name of the model, shown in reports.
        layers: Layers in the order of execution.
        selective_rule: What selective checkpointing does with this model, as a clause for reports.
        tokens_per_sample: Tokens of a sample, to report tokens per second; 0 if there are none.
        is_float32: True if the layers' seconds are those of the device's peak, and most weights
            are float32.
        split_layers: Layers as one rank runs them when they are split over several ranks, by the
            number of these ranks. If there are any, no other numbers are possible. Empty for layers
            whose `tensor_fraction` says how they are split.

    Raises:
        OptionError: There are no layers.
    """

    name: str
    layers: tuple[Layer, ...]
    selective_rule: str = "every second layer is checkpointed"
    tokens_per_sample: int = 0
    is_float32: bool = False
    split_layers: Mapping[int, tuple[Layer, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            bool(self.layers),
            what=f"{self.name} has no layers",
            why="a layout places layers on ranks",
            hint="Pass at least one Layer",
            about="layers",
        )

    @property
    def num_parameters(self) -> int:
        """Number of trained parameter elements of all layers."""
        return sum(layer.num_parameters for layer in self.layers)

    def layers_on(self, tensor: int) -> tuple[Layer, ...]:
        """Return the layers for a number of ranks that split each layer."""
        return self.split_layers.get(tensor, self.layers)

    def can_split(self, tensor: int) -> bool:
        """Return True if layers can be split over this number of ranks; 1 is always possible."""
        if self.split_layers:
            return tensor == 1 or tensor in self.split_layers
        return tensor <= self.most_tensor_ranks

    @property
    def most_tensor_ranks(self) -> int:
        """Largest tensor parallel degree: 1 if no layer can be split."""
        if self.split_layers:
            return max(self.split_layers)
        limits = [each.most_tensor_ranks for each in self.layers if each.tensor_fraction > 0]
        if not limits:
            return 1
        known = [limit for limit in limits if limit]
        return min(known) if known else 1 << 20
