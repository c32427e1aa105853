# SPDX-License-Identifier: Apache-2.0
"""Small model and its batch, for steps with SMP's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import smdist.modelparallel.torch as smp


class Net(nn.Module):
    """Model of six equal blocks and a head; its output is a dict."""

    def __init__(self, *, norm: type[nn.Module] = nn.LayerNorm, tied: bool = False) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(8, 8), norm(8), nn.Tanh()) for _ in range(6)]
        self.layers = nn.Sequential(*blocks)
        self.head = nn.Linear(8, 8)
        if tied:
            self.head.weight = self.layers[0][0].weight

    def forward(self, x: Tensor, scale: float = 1.0, *, extra: Tensor | None = None) -> Any:
        """Return the logits of eight classes."""
        hidden = self.layers(x) * scale
        if extra is not None:
            hidden = hidden + extra
        return {"logits": self.head(hidden), "width": 8}


def net(**options: Any) -> Net:
    """Return the model, with the same weights every time."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(**options)


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    """Return samples and their classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 8, generator=generator)
    return x, torch.randint(0, 8, (rows,), generator=generator)


def start(degree: int | str, **options: Any) -> None:
    """Start a session, by default with four microbatches."""
    plain = {"microbatches": 4, "pipeline": "interleaved", "pipeline_parallel_degree": degree}
    smp.init(smp.ModelParallel(**{**plain, **options}))


def loss_of(model: Any, x: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return the loss of one microbatch."""
    return nn.functional.cross_entropy(model(x, **options)["logits"], y)


@smp.step
def train_step(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """Run forward and backward."""
    loss = loss_of(model, x, y)
    model.backward(loss)
    return loss


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the existing gradients, by name."""
    found = model.named_parameters()
    return {name: p.grad.clone() for name, p in found if p.grad is not None}


def plain_gradients(model: nn.Module, parts: int, rows: int = 8, **options: Any) -> Any:
    """Return the gradients of one process that accumulates the same microbatches."""
    x, y = batch(rows)
    for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
        (loss_of(model, a, b, **options) / parts).backward()
    return gradients(model)


def merged(per_rank: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Merge the results of all ranks."""
    return {name: tensor for each in per_rank for name, tensor in each.items()}


def outcome(function: Any, *args: Any) -> tuple[str, str]:
    """Return the type and the text of a call's exception, or of its result."""
    try:
        return "ok", str(function(*args))
    except Exception as error:
        return type(error).__name__, str(error)


@dataclass(frozen=True)
class Failure:
    """Fields of an exception, as ranks send them to the test.

    Attributes:
        type: Name of its type.
        about: What it is about, as `DistError.about`; () if it is not one of ours.
        kind: Its kind, as `DistError.kind`; "" if it is not one of ours.
        rank: World rank that failed, of errors that have one.
        faults: (about, kind) of each fault of an OptionErrors.
        why: Reason that a StepError has from the rank that failed; the same on all ranks.
        cause: Type, about and kind of the exception that caused it; None if there was none.
    """

    type: str
    about: tuple[str | int, ...]
    kind: str
    rank: int | None
    faults: tuple[Any, ...]
    why: str
    cause: tuple[Any, ...] | None


def failure(function: Any, *args: Any) -> Failure:
    """Return the fields of the exception that a call raises.

    Raises:
        AssertionError: The call raises no exception.
    """
    try:
        function(*args)
    except (Exception, KeyboardInterrupt) as error:
        return failure_of(error)
    raise AssertionError(f"{function} did not fail")


def failure_of(error: BaseException) -> Failure:
    """Return the fields of an exception."""
    name, about, kind = _fields(error)
    return Failure(
        type=name,
        about=about,
        kind=kind,
        rank=getattr(error, "rank", None),
        faults=tuple((each.about, each.kind) for each in getattr(error, "faults", ())),
        why=getattr(error, "why", ""),
        cause=None if error.__cause__ is None else _fields(error.__cause__),
    )


def _fields(error: BaseException) -> tuple[str, tuple[str | int, ...], str]:
    return type(error).__name__, getattr(error, "about", ()), getattr(error, "kind", "")
