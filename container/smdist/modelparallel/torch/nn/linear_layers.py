# SPDX-License-Identifier: Apache-2.0
"""Linear layer and embedding of SMP v1, and the initialization that its layers share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, raise_all


class DistributedLinear(nn.Linear):
    """`nn.Linear` with a bias, under SMP's name.

    Args:
        in_features: Number of input channels of the whole layer.
        out_features: Number of output channels of the whole layer.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)


class DistributedEmbedding(nn.Embedding):
    """`nn.Embedding` whose weights are normally distributed, under SMP's name.

    Args:
        num_embeddings: Number of rows of the whole table.
        embedding_dim: Length of a row.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: As of `nn.Embedding`.
        _weight: Initial values; None for random ones.
        initializer_range: Standard deviation of the random initial values.
        _skip_allgather, _skip_scatter_and_merge: Must be False: the result is always whole.

    Raises:
        OptionError: One of the last two arguments is True.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        initializer_range: float = 0.02,
        _skip_allgather: bool = False,
        _skip_scatter_and_merge: bool = False,
    ) -> None:
        skips = {
            "_skip_allgather": _skip_allgather,
            "_skip_scatter_and_merge": _skip_scatter_and_merge,
        }
        raise_all(_kept_parts(skips.items()))
        self._initializer_range = initializer_range
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight,
        )  # fmt: skip

    def reset_parameters(self) -> None:
        """Draw the weights from a normal distribution around 0; the padding row is 0."""
        nn.init.normal_(self.weight, std=self._initializer_range)
        self._fill_padding_idx_with_zero()


def initialize(layers: Iterable[nn.Linear], use_normal: bool, initializer_range: float) -> None:
    """Draw the weights of linear layers from a normal distribution, and set their biases to 0.

    Args:
        layers: Layers to initialize.
        use_normal: False to leave them as torch has initialized them.
        initializer_range: Standard deviation of the weights.
    """
    for layer in layers if use_normal else ():
        nn.init.normal_(layer.weight, std=initializer_range)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def layer_norm(size: int, epsilon: float, *, is_on: bool) -> nn.LayerNorm | None:
    """Return a layer normalization, or None if it is not wanted."""
    return nn.LayerNorm(size, eps=epsilon) if is_on else None


def norm_faults(name: str, *, pre: bool, post: bool) -> Iterator[OptionError]:
    """Yield a fault if a layer has no normalization.

    Args:
        name: Name of the layer's class.
        pre: Argument `pre_layernorm` of the layer.
        post: Argument `post_layernorm` of the layer.
    """
    if not pre and not post:
        yield OptionError(
            f"{name} has pre_layernorm=False and post_layernorm=False",
            "a layer has a normalization at its input, at its output, or both",
            "Pass True for at least one of them",
            about="post_layernorm",
            kind="conflict",
        )


def _kept_parts(skips: Iterable[tuple[str, bool]]) -> Iterator[OptionError]:
    for name, value in skips:
        if value:
            yield OptionError(
                f"{name} is {value!r}",
                "the result of the embedding is whole on every rank",
                "Leave it out",
                about=name,
                kind="unsupported",
            )
