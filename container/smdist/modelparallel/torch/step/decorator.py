# SPDX-License-Identifier: Apache-2.0
"""`@smp.step`: a function of the user's, run once per microbatch, on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, overload

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel import active, stepping
from smdist.modelparallel.torch.parallel.parallel import Parallel
from smdist.modelparallel.torch.parallel.work import Work
from smdist.modelparallel.torch.step.output import gathered
from smdist.modelparallel.torch.step.slicing import Slicing, named

Function = Callable[..., Any]


@overload
def step(function: Function) -> Function: ...
@overload
def step(
    *, non_split_inputs: Sequence[str] = (), input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Callable[[Function], Function]: ...  # fmt: skip


def step(
    function: Function | None = None, *, non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None, detach_outputs: bool = True,
) -> Any:  # fmt: skip
    """Make a function one step of a pipeline; it runs once per microbatch.

        loss = train_step(model, x, y).reduce_mean()

    As in SMP v1: all ranks of a pipeline call it with the same batch, cut along dimension 0;
    optimizer, clipping and the scaler's step belong outside; BatchNorm and `len(x)` see a
    microbatch. The first call plans and cuts the model.

    What differs here: where the last stage is not, the function ends at the model's call, which
    comes once in it; what it returns is there on all ranks. Up to that call it runs once more for
    the first microbatch. Gradients are there when the step returns. Random numbers are the same
    under every layout. Without gradients there is only a forward pass; with torch.no_grad()
    around the call, a replica may run it alone.

    Args:
        non_split_inputs: Names of arguments that every microbatch gets whole.
        input_split_axes: Another dimension than 0, by argument.
        detach_outputs: Whether results are cut from the graph of gradients; if not, they are
            part of it on the last stage's rank alone.

    Returns:
        A function: a `StepOutput` for each tensor returned, else a list by microbatch.

    Raises:
        OptionError: An argument named is none of the function's; called: the batch cannot be cut
            into equal microbatches, on every rank before anything runs.
        StepError: Called: some rank failed.
    """
    if function is None:
        return lambda found: step_of(
            found, _slicing(non_split_inputs, input_split_axes), detach_outputs
        )
    return step_of(function, _slicing(non_split_inputs, input_split_axes), detach_outputs)


def step_of(function: Function, slicing: Slicing, detaches: bool) -> Function:
    """The step of a function."""
    slicing.check(function)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        model = _model_in((args, kwargs))
        require(
            model._state.scene is None,
            what=f"{function.__qualname__} is called in another step",
            why="a step is a whole run of the pipeline",
            mend="Call the plain function, without @smp.step",
        )
        work = Work(
            name=function.__qualname__,
            function=function,
            cut=lambda number: slicing.cut(function, (args, kwargs), number),
            inputs=_data(function, (args, kwargs)),
            size=lambda: slicing.size(function, (args, kwargs)),
            detaches=detaches,
        )
        return gathered(stepping.run(model._state, work))

    return run


def _slicing(whole: Sequence[str], axes: Mapping[str, int] | None) -> Slicing:
    names = [whole] if isinstance(whole, str) else list(whole)
    bad = [name for name, axis in (axes or {}).items() if type(axis) is not int]
    if bad:
        raise OptionError(
            f"input_split_axes has {axes!r}", "an axis is a number", "Pass integers by argument"
        )
    return Slicing(whole=frozenset(names), axes=dict(axes or {}))


def _model_in(arguments: Arguments) -> Parallel:
    """The model among the arguments, or the one of this process."""
    found = {id(each): each for each in _models(arguments)}
    require(
        len(found) <= 1,
        what=f"the step got {len(found)} models",
        why="a step runs one through the pipeline",
        mend="Put them into one module, or use a step for each",
    )
    return next(iter(found.values())) if found else active.the_model()


def _models(value: Any) -> Iterator[Parallel]:
    if isinstance(value, Parallel):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _models(each)
    elif isinstance(value, dict):
        yield from _models(list(value.values()))


def _data(function: Function, arguments: Arguments) -> dict[str, Any]:
    """The arguments without models, by name: what ranks compare."""
    found: dict[str, Any] = {}
    for name, value in named(function, arguments):
        if not isinstance(value, Parallel):
            found[f"{name} {len(found)}" if name in found else name] = value
    return found
