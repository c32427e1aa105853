# SPDX-License-Identifier: Apache-2.0
"""What split Keras models do not support is refused by name, on every rank."""

import pytest


def refused(rank, _size, config, change):
    """Return the fields of the error that a run raises."""
    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp
    from sagemaker_dist.errors import OptionError

    try:
        smp.init(config)
        name = "shared" if change == "other_model" and rank == 1 else "residual"
        model = smp.DistributedModel(made(name), costs="estimate")
        options = {"jit_compile": True} if change == "jit_compile" else {}
        loss = keras.losses.MeanSquaredError(reduction="sum") if change == "sum" else loss_of(name)
        model.compile(optimizer="sgd", loss=loss, **options)
        x, y = MODELS[name][1](10 if change == "batch" else 8)
        if change == "call":
            model(x)
        model.train_on_batch(x, y)
        model.train_on_batch(x[:6], y[:6])
    except OptionError as error:
        return error.about, error.kind
    return None


TWO = {"pipeline_parallel_degree": 2, "microbatches": 4}


@pytest.mark.parametrize(
    ("config", "change", "about", "kind"),
    [
        ({**TWO, "tensor_parallel_degree": 2}, "", "tensor_parallel_degree", "unsupported"),
        ({**TWO, "pipeline": "zero_bubble", "virtual_stages": 1}, "", "pipeline", "unsupported"),
        (TWO, "jit_compile", "jit_compile", "unsupported"),
        (TWO, "sum", "loss", "unsupported"),
        (TWO, "batch", "microbatches", "indivisible"),
        (TWO, "", "microbatches", "indivisible"),
        (TWO, "call", "model", "outside"),
        (TWO, "other_model", None, None),
    ],
)
def test_refusals(keras_world, config, change, about, kind):
    """Every rank raises the same error."""
    first, second = keras_world.run(refused, config, change, size=2, deadline=60)

    assert first is not None
    assert second is not None
    if kind is not None:
        assert ((about,), kind) == first == second
