# SPDX-License-Identifier: Apache-2.0
"""A rank that trains a Keras model in stages has memory for its own stage."""

import signal

import pytest
from tf_ranks import TensorFlowWorld

STAGES = 3
LAYER_BYTES = 32 * 2**20  # checked against keras_memory, whose import loads TensorFlow
# One rank needs more than 12 layers and their 12 gradients, a rank of three 17 layers' bytes.
LIMIT = 21 * LAYER_BYTES
OTHERS = 24 * 2**20  # bytes of code and of TensorFlow's graphs


@pytest.fixture
def new_ranks():
    """Ranks without memory that earlier tests have freed and the allocator has kept."""
    world = TensorFlowWorld(STAGES)
    yield world
    world.close()


def started(_rank, size, kind):
    """Split a model; return the memory that it took until the first step."""
    import keras
    import keras_memory

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": size, "microbatches": 2})
    keras_memory.warm_up()
    found = []
    peak = keras_memory.Peak()
    smp.register_post_partition_hook(lambda: found.append(peak.num_bytes()))
    model = _model(kind)
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    model.train_on_batch(*keras_memory.batch())
    return found, [len(units) for units in model.plan.stages]


def _model(kind):
    """Return a distributed model as a user makes it."""
    import keras_memory

    import smdist.modelparallel.tensorflow as smp

    assert LAYER_BYTES == keras_memory.LAYER_BYTES
    if kind == "subclassed":  # it is built when it is captured
        return smp.DistributedModel(keras_memory.Subclassed())
    with smp.delay_param_initialization():
        inner = keras_memory.functional()
    return smp.DistributedModel(inner)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_start(new_ranks, kind):
    """Capture, measurements and first values take at most a stage and one layer."""
    for rank, ([peak], stages) in enumerate(
        new_ranks.run(started, kind, size=STAGES, deadline=200)
    ):
        own = stages[rank] * LAYER_BYTES

        assert own <= peak + OTHERS, "the measurement misses the rank's own stage"
        assert peak <= own + LAYER_BYTES + OTHERS


def trained_within_limit(_rank, size):
    """Train one step in LIMIT bytes; return the loss and the number of layers of each stage."""
    import keras
    import keras_memory

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": size, "microbatches": 2})
    keras_memory.warm_up()
    with keras_memory.limited_growth(LIMIT):
        model = _model("functional")
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        loss = model.train_on_batch(*keras_memory.batch())
    return float(loss), [len(units) for units in model.plan.stages]


@pytest.mark.slow
def test_a_model_that_one_rank_cannot_hold(new_ranks):
    """One rank runs out of memory, and three ranks with the same limit each train."""
    [(has_answer, text)] = new_ranks.outcomes(trained_within_limit, size=1, deadline=200)
    answers = new_ranks.run(trained_within_limit, size=STAGES, deadline=200)

    assert [answers[0]] * STAGES == answers
    assert sum(answers[0][1]) == 12
    assert not has_answer
    # TensorFlow raises, or aborts where a thread of its own gets no memory.
    assert any(words in text for words in ("OOM", "bad_alloc", f"exit code -{signal.SIGABRT:d}"))
