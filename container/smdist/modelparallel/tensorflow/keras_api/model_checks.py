# SPDX-License-Identifier: Apache-2.0
"""Features of a Keras model that a split model would ignore; each is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import keras

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.tensorflow.keras_stages.keras_split import SplitKerasModel

_METHODS: Final = (
    *("train_step", "test_step", "predict_step"),
    *("compute_loss", "compute_metrics", "make_train_function"),
)
_SHOWN: Final = 3  # largest number of layers that an error names


def check_model(model: Any) -> None:
    """Check that a model can be split as it is.

    Raises:
        OptionError: It is none of Keras, is compiled, or has code that only its own fit() would
            run; all faults are reported.
    """
    if not isinstance(model, keras.Model):
        raise OptionError(
            f"model is of type {type(model).__name__}",
            "smp.DistributedModel splits a keras.Model",
            "Pass a functional, sequential or subclassed model of Keras",
            about="model",
        )
    raise_all([*_methods(model, keras.Model), *_compiled(model), *_metrics(model)])


def check_subclass(model: Any, base: type) -> None:
    """Check that a subclass of smp.DistributedModel has no code that only Keras's fit() would run.

    Args:
        model: Instance, whose layers do not exist yet.
        base: smp.DistributedModel.

    Raises:
        OptionError: It has; all faults are reported.
    """
    raise_all(_methods(model, base))


def check_layers(model: Any) -> None:
    """Check the layers of a model.

    Raises:
        OptionError: Layers have metrics of their own.
    """
    raise_all(_metrics(model))


def check_state(split: SplitKerasModel) -> None:
    """Check that layers with a state of their own compute what they compute in one process.

    Raises:
        OptionError: Calls of such a layer, as of BatchNormalization, are on several stages, which
            would each have a state; or a recurrent layer keeps states from batch to batch.
    """
    raise_all(_stateful(split))
    trained = {id(each) for each in split.trained}
    holders, divided = split.holders(), []
    for step in split.program.steps:
        if step.is_layer:
            own = [each for each in step.operation.weights if id(each) not in trained]
            divided += [step.module for each in own if _is_moving(each, holders)]
    if divided:
        names = list(dict.fromkeys(divided))
        raise OptionError(
            f"layer {', '.join(map(repr, names[:_SHOWN]))} is on several stages",
            "it is called several times and changes weights in its calls, and each stage would have"
            " weights of its own",
            "Place all its calls on one stage with smp.set_partition and auto_partition=False",
            about="model",
            kind="divided_state",
        )


def _stateful(split: SplitKerasModel) -> Iterator[OptionError]:
    """Yield an error if a layer keeps a state of each sample, which is now in a microbatch."""
    layers = split.model._flatten_layers(include_self=False, recursive=True)
    names = [layer.name for layer in layers if getattr(layer, "stateful", False) is True]
    count = split.plan.num_microbatches
    if names and count > 1:
        yield OptionError(
            f"layer {', '.join(map(repr, names[:_SHOWN]))} has stateful=True",
            "it continues each sample of a batch where that of the batch before ended, and here"
            f" {count} microbatches follow each other with other samples",
            "Set microbatches=1, or stateful=False",
            about="stateful",
            kind="unsupported",
        )


def _is_moving(variable: Any, holders: dict[int, tuple[int, ...]]) -> bool:
    return not variable._trainable and len(holders.get(id(variable), ())) > 1


def _methods(model: Any, base: type) -> Iterator[OptionError]:
    for name in _METHODS:
        if getattr(type(model), name) is not getattr(base, name):
            yield OptionError(
                f"{type(model).__name__} has a {name}() of its own",
                "a split model computes loss and metrics on the rank of the last stage, from"
                " compile() alone",
                "Write the loop with @smp.step, or pass loss and metrics to compile()",
                about=name,
                kind="unsupported",
            )


def _compiled(model: Any) -> Iterator[OptionError]:
    if model.compiled:
        yield OptionError(
            f"{model.name!r} is compiled",
            "its optimizer and loss would have no effect",
            "Call compile() of the smp.DistributedModel instead",
            about="model",
            kind="conflict",
        )


def _metrics(model: Any) -> Iterator[OptionError]:
    layers = model._flatten_layers(include_self=True, recursive=True)
    names = [layer.name for layer in layers if layer._metrics]
    if names:
        yield OptionError(
            f"layer {', '.join(map(repr, names[:_SHOWN]))} has metrics of its own",
            "only the metrics of compile() reach the logs of a split model",
            "Return what is to be measured as an output, and pass metrics to compile()",
            about="metrics",
            kind="unsupported",
        )
