# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer that reduces gradients over all ranks before each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.errors import require
from smdist.config import read_rank_config
from smdist.dataparallel.torch.horovod.adasum_optimizer import AdasumMixin, ChangeReduction
from smdist.dataparallel.torch.horovod.allreduce_calls import Scaling
from smdist.dataparallel.torch.horovod.compressors import Compression
from smdist.dataparallel.torch.horovod.gradient_reducer import GradientReducer
from smdist.dataparallel.torch.horovod.hvd_errors import GradientRaceError
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)
from smdist.dataparallel.torch.horovod.reductions import Adasum, Average, as_reduction


class ReducingMixin:
    """Methods that DistributedOptimizer() puts before those of the optimizer's own class."""

    param_groups: list[dict[str, Any]]
    _reducer: GradientReducer
    _is_reduced: bool
    _is_skipping: bool

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes before gradients are reduced.

        Raises:
            OptionError: It is no number from 1.
        """
        _check_passes(passes)
        self._reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, for example before they are clipped.

        Raises:
            HorovodMismatchError: Ranks have different parameters.
            HorovodInternalError: A rank was lost.
        """
        # parameters that were added, or were frozen, get their hooks now
        self._reducer.adopt(each for group in self.param_groups for each in group["params"])
        self._reducer.synchronize()
        self._is_reduced = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let step() take the gradients as they are, after synchronize().

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._is_skipping = True
        try:
            yield
        finally:
            self._is_skipping = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, and let the optimizer make its step.

        After synchronize(), gradients are not reduced a second time; without skip_synchronize()
        a warning says so.

        Args:
            closure: Function that computes the loss and the gradients, which are reduced after
                each call of it.

        Raises:
            GradientRaceError: It was called in skip_synchronize() without synchronize() before.
        """
        inherited: Any = super()
        if closure is not None:
            return inherited.step(lambda: self._reduced_loss(closure))
        if self._is_skipping:
            self._check_reduced()
        else:
            if self._is_reduced and not self._reducer.is_running:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after"
                    " optimizer.synchronize(): the gradients are not reduced a second time",
                    stacklevel=2,
                )
            else:
                self.synchronize()
        self._is_reduced = False
        return inherited.step()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients.

        Raises:
            GradientRaceError: Gradients of a backward pass were not yet reduced.
        """
        if self._reducer.is_running:
            raise GradientRaceError(
                "zero_grad() was called between backward() and step() or synchronize()",
                "gradients are still being reduced",
                "Call step() or synchronize() first",
                about="zero_grad",
            )
        inherited: Any = super()
        inherited.zero_grad(*args, **kwargs)

    def _check_reduced(self) -> None:
        if self._reducer.is_running:
            raise GradientRaceError(
                "step() was called in skip_synchronize() before synchronize()",
                "gradients are still being reduced",
                "Call synchronize() before skip_synchronize()",
                about="skip_synchronize",
            )

    def _reduced_loss(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.synchronize()
        self._is_reduced = False
        return loss


@after_init
def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the optimizer with a step() that first reduces gradients over all ranks.

    Its class is a subclass of the optimizer's class. It shares parameter groups and state with
    the optimizer, which must not be used any more. The reduction begins during backward(), in
    buckets of the job's `fusion_bytes`.

    Args:
        optimizer: The optimizer of a model that is the same on all ranks.
        named_parameters: Names and parameters, such as model.named_parameters(); all of the
            optimizer's, each name once, for timelines. None if they need no names.
        compression: `Compression.none`, `.fp16` or `.bf16` for the way.
        backward_passes_per_step: Backward passes whose gradients are added before they are
            reduced. Default 1.
        op: Average (the default), Sum, Min, Max or Product. With Adasum each rank makes the
            optimizer's step with its own gradients, and the changes of the parameters are combined.
        gradient_predivide_factor: Number by which gradients are divided before they are summed;
            the average is then divided by the rest. Default 1. Only for op=Average.
        num_groups: Deprecated: the same as `groups` with a number.
        groups: Lists of parameters that are reduced together, or into how many such lists all
            parameters are divided; None for buckets by size.
        sparse_as_dense: True converts sparse gradients to dense ones before they are reduced, and
            back after it.
        process_set: The ranks that share the model.

    Raises:
        OptionError: An argument is wrong.
    """
    reduction = as_reduction(op)
    _check_passes(backward_passes_per_step)
    require(
        gradient_predivide_factor == 1.0 or reduction is Average,
        what=f"gradient_predivide_factor is {gradient_predivide_factor!r} with op={op!r}",
        why="only an average can be divided in two parts",
        hint="Leave it out, or use op=Average",
        about="gradient_predivide_factor",
        kind="conflict",
    )
    params = [each for group in optimizer.param_groups for each in group["params"]]
    named = [] if named_parameters is None else list(named_parameters)
    if named_parameters is not None:
        _check_names(named, params)
    if reduction is Adasum:
        _check_no_buckets(groups, num_groups, sparse_as_dense)
        return _combining(
            optimizer, ChangeReduction(compression=compression, process_set=process_set)
        )
    scaling = Scaling(
        reduction, 1.0 / gradient_predivide_factor, float(gradient_predivide_factor), process_set
    )
    made = _subclassed(optimizer, ReducingMixin)
    made._is_reduced = made._is_skipping = False
    made._reducer = GradientReducer(
        params,
        _groups(params, groups, num_groups),
        scaling=scaling,
        compression=compression,
        passes=backward_passes_per_step,
        densify=sparse_as_dense,
        bucket_bytes=read_rank_config().fusion_bytes or DataParallel().fusion_bytes,
        names={id(each): name for name, each in named},
    )
    return made


def _subclassed(optimizer: torch.optim.Optimizer, mixin: type) -> Any:
    """Return an optimizer with the methods of `mixin`, which shares the state of `optimizer`."""
    own = type(optimizer)
    made: Any = object.__new__(type(own.__name__, (mixin, own), {}))
    # a learning rate scheduler of the optimizer has put a step of its own there
    made.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    return made


def _combining(optimizer: torch.optim.Optimizer, changes: ChangeReduction) -> Any:
    made = _subclassed(optimizer, AdasumMixin)
    made._changes = changes
    return made


def _check_no_buckets(groups: Any, num_groups: int, sparse_as_dense: bool) -> None:
    given = {"groups": groups, "num_groups": num_groups, "sparse_as_dense": sparse_as_dense}
    used = [name for name, value in given.items() if value]
    require(
        not used,
        what=f"{' and '.join(used)} was passed with op=Adasum",
        why="changes of parameters are combined, each by itself and dense, and no gradients travel",
        hint=f"Leave {' and '.join(used)} out, or use op=Average",
        about=used[0] if used else "groups",
        kind="conflict",
    )


def _check_passes(passes: Any) -> None:
    require(
        isinstance(passes, int) and passes > 0,
        what=f"backward_passes_per_step is {passes!r}",
        why="it is a number of backward passes, at least 1",
        hint="Pass 1 or more",
        about="backward_passes_per_step",
    )


def _check_names(named: list[Any], params: list[torch.Tensor]) -> None:
    require(
        all(isinstance(each, tuple) and len(each) == 2 for each in named),
        what="named_parameters has an entry that is no pair",
        why="it must consist of (name, parameter)",
        hint="Pass model.named_parameters()",
        about="named_parameters",
    )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(
        not twice,
        what=f"named_parameters has {', '.join(twice)} more than once",
        why="each parameter needs a name of its own",
        hint="Put the name of its module before each name",
        about="named_parameters",
        kind="twice",
    )
    unnamed = {id(each) for each in params} - {id(each) for _, each in named}
    require(
        not unnamed,
        what=f"named_parameters lacks {len(unnamed)} of the optimizer's parameters",
        why="all of them need names, if any has one",
        hint="Pass model.named_parameters() of the whole model, or leave it out",
        about="named_parameters",
        kind="missing",
    )


def _groups(
    params: list[torch.Tensor], groups: Any, num_groups: int
) -> Sequence[Sequence[torch.Tensor]]:
    """Return lists of parameters that travel together.

    Raises:
        OptionError: `groups` and `num_groups` are both given, or are wrong.
    """
    if num_groups:
        warnings.warn(
            "the argument num_groups is deprecated; pass groups", DeprecationWarning, stacklevel=3
        )
        require(
            groups is None,
            what=f"both groups and num_groups={num_groups!r} were passed",
            why="both say which parameters are reduced together",
            hint="Pass only groups",
            about="num_groups",
            kind="conflict",
        )
        groups = num_groups
    if groups is None:
        return []
    if isinstance(groups, int):
        require(
            groups > 0,
            what=f"groups is {groups!r}",
            why="parameters are divided into at least one group",
            hint="Pass a positive number, or None",
            about="groups",
        )
        backwards = params[::-1]
        length = -(-len(params) // groups)
        return [backwards[at : at + length] for at in range(0, len(params), length)]
    lists = [list(group) for group in groups]
    ids = [id(each) for group in lists for each in group]
    require(
        len(set(ids)) == len(ids) and set(ids) <= {id(each) for each in params},
        what="groups has a parameter twice, or one that the optimizer does not have",
        why="each parameter of the optimizer is reduced once",
        hint="Pass lists of different parameters of the optimizer",
        about="groups",
    )
    return lists
