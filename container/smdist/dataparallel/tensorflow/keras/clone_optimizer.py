# SPDX-License-Identifier: Apache-2.0
"""Functions that clone an optimizer: first its configuration, then its state."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow.variable_signature import names_of

STEPS: Final = "gradient_accumulation_steps"
INNER: Final = "inner_optimizer"
_RATE: Final = "learning_rate"
# beginning of the names of attributes that Keras leaves out of the configuration
_EXCLUDED: Final = "_exclude_from_weight_decay"


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside a LossScaleOptimizer; return any other optimizer itself."""
    return getattr(optimizer, INNER, optimizer)


def clone_configuration(optimizer: Any, kind: Any, changes: dict[str, Any]) -> Any:
    """Return a new optimizer of the class `kind` with the optimizer's configuration.

    A learning rate that is a schedule or a function is shared, not copied.

    Args:
        optimizer: The optimizer to clone.
        kind: The optimizer's class, or a subclass of it.
        changes: Arguments that replace those of the configuration, by name. For a
            LossScaleOptimizer they must include the inner optimizer of the clone.

    Raises:
        OptionError: get_config() of the class is incomplete, or __init__() raises an error.
    """
    try:
        config = {**_configuration(optimizer), **changes}
        _check_complete(type(optimizer), config)
        made = kind(**config) if INNER in config else kind.from_config(config)
    except OptionError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise OptionError(
            f"{type(optimizer).__name__} cannot be built again from its get_config()",
            f"{type(error).__name__}: {error}",
            "Correct get_config(): it must return all arguments of __init__(), as for saving a"
            " model",
            about="get_config",
        ) from error
    for name, value in vars(optimizer).items():
        if name.startswith(_EXCLUDED):
            setattr(made, name, value)
    return made


def copy_state(source: Any, target: Any) -> None:
    """Build the optimizer `target` for the variables of `source`, and copy the state of `source`.

    Do nothing if `source` is not built. If only `target` accumulates gradients, its accumulated
    sums start at zero. Its counter `iterations` is then the number of updates of `source` times
    `gradient_accumulation_steps`.

    Raises:
        OptionError: The states of the two optimizers have different variables.
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


def _check_complete(base: Any, config: dict[str, Any]) -> None:
    """Check that an optimizer's configuration has all arguments of __init__().

    Args:
        base: The optimizer's class.
        config: Arguments by name, from get_config().

    Raises:
        OptionError: An argument is missing.
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    arguments = list(inspect.signature(base.__init__).parameters.values())[1:]
    lacking = [
        each.name for each in arguments if each.kind not in variadic and each.name not in config
    ]
    require(
        not lacking,
        what=f"{base.__name__}.get_config() does not return {', '.join(lacking)}",
        why="the distributed optimizer is built from get_config(), and a saved model would lose"
        " this value, too",
        hint="Make get_config() return all arguments of __init__()",
        about="get_config",
        kind="incomplete",
    )


def _copy(source: Any, target: Any) -> None:
    steps = getattr(target, STEPS, None) or 1
    is_new = steps > 1 and not getattr(source, STEPS, None)
    spare = {id(each) for each in target._accumulated_gradients} if is_new else ()
    theirs, ours = source._variables, [each for each in target._variables if id(each) not in spare]
    require(
        _shapes_and_names(theirs) == _shapes_and_names(ours),
        what=f"the state of {type(source).__name__} cannot be copied to its distributed clone",
        why=f"it has {len(theirs)} variables and the clone has {len(ours)}; number, shapes and"
        " names of the variables must be the same",
        hint="Call DistributedOptimizer() before the optimizer is built",
        about="optimizer",
    )
    for one, other in zip(theirs, ours, strict=True):
        other.assign(one)
    if is_new:
        target._iterations.assign(source._iterations.value * steps)


def _shapes_and_names(variables: Sequence[Any]) -> list[tuple[str, str]]:
    """Return (shape, kind) of each variable of an optimizer; the kind is, for example, "momentum".

    The kind is the last word of the variable's name. The rest of the name contains the optimizer's
    name, which may be different for two optimizers of one class.
    """
    words = (name.rpartition(" ")[-1] for name in names_of(variables, is_brief=True))
    return [(str(each.shape), word) for each, word in zip(variables, words, strict=True)]
