# SPDX-License-Identifier: Apache-2.0
"""Transformer of SMP v1: layers of attention and of an MLP, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional

from sagemaker_dist.errors import raise_all, require
from smdist.modelparallel.torch.nn.attention_layer import DistributedAttentionLayer, alibi_faults
from smdist.modelparallel.torch.nn.linear_layers import initialize, layer_norm, norm_faults

_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
}


class DistributedTransformerOutputLayer(nn.Module):
    """MLP of a Transformer's layer, with dropout and the residual connection around it.

    Args:
        hidden_size: Channels of the input and of the output, H.
        intermediate_size: Channels between the two linear layers.
        hidden_dropout_prob: Probability of dropout before the residual connection.
        activation: "gelu" or "relu".
        layernorm_epsilon: Number that layer normalizations add to the variance.
        initializer_range: Standard deviation of the weights with `use_normal_initialization`.
        use_normal_initialization: True for normally distributed weights; False for torch's
            initialization.
        pre_layernorm: True to normalize the input.
        post_layernorm: True to normalize the output.
        fp32_residual_addition: True to add the residual connection in float32.

    Raises:
        OptionError: The activation is unknown, or both layer normalizations are off.
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fp32_residual_addition: bool = False,
    ) -> None:
        raise_all(norm_faults(type(self).__name__, pre=pre_layernorm, post=post_layernorm))
        require(
            activation in _ACTIVATIONS,
            what=f"activation is {activation!r}",
            why="the layer has no such function",
            hint="Pass 'gelu' or 'relu'",
            about="activation",
        )
        super().__init__()
        self.dense1 = nn.Linear(hidden_size, intermediate_size)
        self.dense2 = nn.Linear(intermediate_size, hidden_size)
        layers = (self.dense1, self.dense2)
        initialize(layers, use_normal_initialization, initializer_range)
        self.activation, self.fp32_residual_addition = activation, fp32_residual_addition
        self.dropout = nn.Dropout(hidden_dropout_prob)
        self.pre_layernorm = layer_norm(hidden_size, layernorm_epsilon, is_on=pre_layernorm)
        self.layernorm = layer_norm(hidden_size, layernorm_epsilon, is_on=post_layernorm)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the output of the layer; input and output are of shape [N, S, H]."""
        states = hidden_states
        if self.pre_layernorm is not None:
            states = self.pre_layernorm(states)
        output: Tensor = self.dropout(
            self.dense2(_ACTIVATIONS[self.activation](self.dense1(states)))
        )
        if self.fp32_residual_addition:
            output = (hidden_states.float() + output.float()).to(hidden_states.dtype)
        else:
            output = hidden_states + output
        found: Tensor = output if self.layernorm is None else self.layernorm(output)
        return found


class DistributedTransformerLayer(nn.Module):
    """Layer of a Transformer: attention, optional cross-attention, and an MLP.

    Args:
        num_attention_heads, attention_head_size, hidden_size: As of `DistributedAttentionLayer`.
        attention_dropout_prob, hidden_dropout_prob, causal_mask_size: As there.
        layernorm_epsilon, initializer_range, use_normal_initialization: As there.
        pre_layernorm, post_layernorm: As there.
        intermediate_size, activation: As of `DistributedTransformerOutputLayer`.
        fp32_residual_addition: As there.
        add_cross_attention: True for a second attention, to `cross_states`.
        use_alibi: Must be False.
        alibi_bias_max: No effect without `use_alibi`.

    Raises:
        OptionError: Arguments contradict each other, or are not supported.
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        use_alibi: bool = False,
        alibi_bias_max: int = 8,  # noqa: ARG002  of use_alibi
        fp32_residual_addition: bool = False,
    ) -> None:
        raise_all(alibi_faults(use_alibi))
        super().__init__()
        both: dict[str, Any] = {
            "hidden_size": hidden_size,
            "hidden_dropout_prob": hidden_dropout_prob,
            "layernorm_epsilon": layernorm_epsilon,
            "initializer_range": initializer_range,
            "use_normal_initialization": use_normal_initialization,
            "pre_layernorm": pre_layernorm,
            "post_layernorm": post_layernorm,
        }
        heads: dict[str, Any] = {
            "num_attention_heads": num_attention_heads,
            "attention_head_size": attention_head_size,
            "attention_dropout_prob": attention_dropout_prob,
        }
        self.add_cross_attention = add_cross_attention
        self.attention = DistributedAttentionLayer(
            **heads, **both, causal_mask_size=causal_mask_size
        )
        self.cross_attention: DistributedAttentionLayer | None = None
        if add_cross_attention:
            self.cross_attention = DistributedAttentionLayer(**heads, **both, cross_attention=True)
        self.output = DistributedTransformerOutputLayer(
            **both, intermediate_size=intermediate_size, activation=activation,
            fp32_residual_addition=fp32_residual_addition,
        )  # fmt: skip

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs with new hidden states.

        Args:
            inputs: `(hidden_states, attention_mask)` or, with `add_cross_attention`,
                `(hidden_states, cross_states, attention_mask, cross_mask)`. States are of shape
                [N, S, H]; masks of shape [N, 1, 1, S] are added to the scores.
        """
        if self.cross_attention is None:
            hidden, mask = inputs
            return self.output(self.attention((hidden, mask))), mask
        hidden, cross_states, mask, cross_mask = inputs
        hidden = self.attention((hidden, mask))
        hidden = self.cross_attention((hidden, cross_states, cross_mask))
        return self.output(hidden), cross_states, mask, cross_mask


class DistributedTransformer(nn.Module):
    """Layers of a Transformer, one after the other.

    If both layer normalizations are on, the input and the output are normalized, too.

    Args:
        num_layers: Number of layers.
        num_attention_heads, attention_head_size, hidden_size: As of `DistributedTransformerLayer`.
        intermediate_size, activation, layernorm_epsilon: As there.
        attention_dropout_prob, hidden_dropout_prob, causal_mask_size: As there.
        initializer_range, use_normal_initialization, add_cross_attention: As there.
        pre_layernorm, post_layernorm, options: As there.

    Raises:
        OptionError: Arguments contradict each other, or are not supported.
    """

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()

        def layer() -> DistributedTransformerLayer:
            return DistributedTransformerLayer(
                num_attention_heads, attention_head_size, hidden_size, intermediate_size,
                attention_dropout_prob, hidden_dropout_prob, activation, layernorm_epsilon,
                initializer_range, use_normal_initialization, causal_mask_size,
                add_cross_attention, pre_layernorm, post_layernorm, **options,
            )  # fmt: skip

        self.seq_layers = nn.Sequential(*(layer() for _ in range(num_layers)))
        has_both = pre_layernorm and post_layernorm
        self.input_layernorm = layer_norm(hidden_size, layernorm_epsilon, is_on=has_both)
        self.output_layernorm = layer_norm(hidden_size, layernorm_epsilon, is_on=has_both)

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs with the hidden states of the last layer, as a layer does."""
        if self.input_layernorm is not None:
            inputs = (self.input_layernorm(inputs[0]), *inputs[1:])
        outputs: tuple[Any, ...] = self.seq_layers(inputs)
        if self.output_layernorm is not None:
            outputs = (self.output_layernorm(outputs[0]), *outputs[1:])
        return outputs
