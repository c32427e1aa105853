# SPDX-License-Identifier: Apache-2.0
"""Clone of an optimizer: first its configuration, then its state."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow.variable_signature import names_of

STEPS: Final = "gradient_accumulation_steps"
INNER: Final = "inner_optimizer"
_RATE: Final = "learning_rate"
# setting that Keras keeps outside of the configuration
_EXCLUDED: Final = "_exclude_from_weight_decay"


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates variables, inside a LossScaleOptimizer."""
    return getattr(optimizer, INNER, optimizer)


def rebuilt(optimizer: Any, kind: Any, changes: dict[str, Any]) -> Any:
    """Return a new `kind`, the optimizer's class or a subclass, with the optimizer's configuration.

    A learning rate that is a schedule or a function is reused as it is.

    Args:
        changes: Changes of the configuration; for a LossScaleOptimizer also the inner optimizer.

    Raises:
        OptionError: get_config() of the class is incomplete, or its __init__() refuses it.
    """
    try:
        config = {**_configuration(optimizer), **changes}
        _check_told(type(optimizer), config)
        made = kind(**config) if INNER in config else kind.from_config(config)
    except OptionError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise OptionError(
            f"{type(optimizer).__name__} cannot be built again from its get_config()",
            f"{type(error).__name__}: {error}",
            "Let get_config() return what __init__() takes, as for saving a model",
        ) from error
    for name, value in vars(optimizer).items():
        if name.startswith(_EXCLUDED):
            setattr(made, name, value)
    return made


def take_state(source: Any, target: Any) -> None:
    """Build `target` for the variables of `source` and copy the state, if `source` is built.

    If only `target` accumulates gradients, its sums start at zero, and its iterations
    count passes instead of updates.

    Raises:
        OptionError: The optimizers do not keep the same variables.
    """
    if not source.built:
        return
    target.build(source._trainable_variables)
    _copy(source, target)
    if innermost(source) is not source:
        _copy(innermost(source), innermost(target))


def _configuration(optimizer: Any) -> dict[str, Any]:
    rate = getattr(optimizer, "_learning_rate", None)
    shell = object.__new__(type(optimizer))  # copy without the parts that may have no configuration
    vars(shell).update(vars(optimizer))
    if callable(rate):
        vars(shell)["_learning_rate"] = 0.0
    if INNER in vars(shell):
        vars(shell)[INNER] = None
    config: dict[str, Any] = shell.get_config()
    return {**config, _RATE: rate} if callable(rate) else config


def _check_told(base: Any, config: dict[str, Any]) -> None:
    """Refuse a class whose configuration lacks an argument: the clone would get its default."""
    whole = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = list(inspect.signature(base.__init__).parameters.values())[1:]
    lacking = [each.name for each in taken if each.kind not in whole and each.name not in config]
    require(
        not lacking,
        what=f"{base.__name__}.get_config() lacks {', '.join(lacking)}",
        why="the distributed optimizer is built from it, and a saved model would lose it as well",
        hint="Let it return all that __init__() takes",
    )


def _copy(source: Any, target: Any) -> None:
    steps = getattr(target, STEPS, None) or 1
    is_new = steps > 1 and not getattr(source, STEPS, None)
    spare = {id(each) for each in target._accumulated_gradients} if is_new else ()
    theirs, ours = source._variables, [each for each in target._variables if id(each) not in spare]
    require(
        _told(theirs) == _told(ours),
        what=f"the state of {type(source).__name__} is not that of its twin",
        why=f"one keeps {len(theirs)} variables, the other {len(ours)} or others",
        hint="Wrap the optimizer before it is built",
    )
    for one, other in zip(theirs, ours, strict=True):
        other.assign(one)
    if is_new:
        target._iterations.assign(source._iterations.value * steps)


def _told(variables: Sequence[Any]) -> list[tuple[str, str]]:
    """Return each variable's shape and last word; optimizers of one class may have other names."""
    words = (name.rpartition(" ")[-1] for name in names_of(variables, is_brief=True))
    return [(str(each.shape), word) for each, word in zip(variables, words, strict=True)]
