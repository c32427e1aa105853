# SPDX-License-Identifier: Apache-2.0
"""A new optimizer like a given one: its configuration, then its state."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow.agreement import names_of

STEPS: Final = "gradient_accumulation_steps"
INNER: Final = "inner_optimizer"
_RATE: Final = "learning_rate"
_EXCLUDED: Final = "_exclude_from_weight_decay"  # what Keras keeps beside the configuration


def innermost(optimizer: Any) -> Any:
    """The optimizer that updates variables, within a LossScaleOptimizer."""
    return getattr(optimizer, INNER, optimizer)


def rebuilt(optimizer: Any, kind: Any, changes: dict[str, Any]) -> Any:
    """A `kind` (the optimizer's class, or one made from it) with its configuration.

    A learning rate that is a schedule or a function is taken over as it is.

    Args:
        changes: Of the configuration; for a LossScaleOptimizer also the inner one.

    Raises:
        OptionError: Its class does not tell all of its configuration, or does not take it.
    """
    try:
        config = {**_configuration(optimizer), **changes}
        _check_told(type(optimizer), config)
        made = kind(**config) if INNER in config else kind.from_config(config)
    except OptionError:
        raise
    except Exception as error:  # whatever a class of the user's raises
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
    """Build `target` for the variables of `source`, if that is built, with its state.

    Where only `target` adds gradients up, it begins at zero, and counts passes for updates.

    Raises:
        OptionError: They do not keep the same variables.
    """
    if not source.built:
        return
    target.build(source._trainable_variables)
    _copy(source, target)
    if innermost(source) is not source:
        _copy(innermost(source), innermost(target))


def _configuration(optimizer: Any) -> dict[str, Any]:
    rate = getattr(optimizer, "_learning_rate", None)
    shell = object.__new__(type(optimizer))  # the optimizer, but for what may have no configuration
    vars(shell).update(vars(optimizer))
    if callable(rate):
        vars(shell)["_learning_rate"] = 0.0
    if INNER in vars(shell):
        vars(shell)[INNER] = None
    config: dict[str, Any] = shell.get_config()
    return {**config, _RATE: rate} if callable(rate) else config


def _check_told(base: Any, config: dict[str, Any]) -> None:
    """Refuse a class that would be built with defaults where the given one may have others."""
    whole = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    taken = list(inspect.signature(base.__init__).parameters.values())[1:]
    lacking = [each.name for each in taken if each.kind not in whole and each.name not in config]
    require(
        not lacking,
        what=f"{base.__name__}.get_config() lacks {', '.join(lacking)}",
        why="the distributed optimizer is built from it, and a saved model would lose it as well",
        mend="Let it return all that __init__() takes",
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
        mend="Wrap the optimizer before it is built",
    )
    for one, other in zip(theirs, ours, strict=True):
        other.assign(one)
    if is_new:
        target._iterations.assign(source._iterations.value * steps)


def _told(variables: Sequence[Any]) -> list[tuple[str, str]]:
    """Shape and last word of each: optimizers of one class may have other names."""
    words = (name.rpartition(" ")[-1] for name in names_of(variables, is_brief=True))
    return [(str(each.shape), word) for each, word in zip(variables, words, strict=True)]
