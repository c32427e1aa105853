# SPDX-License-Identifier: Apache-2.0
"""Collectives that would give wrong numbers, or none, are refused: on one rank as on many."""

import pytest


def _refused(rank, size):
    """Return the error of each call, all of which must fail."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp
    from sagemaker_dist.errors import OptionError

    sdp.init()
    whole, rows = tf.constant([True, False]), tf.range(5)
    slices = tf.IndexedSlices(whole[:, None], tf.constant([0, 1]), tf.constant([2, 1]))
    strings, unsigned = tf.constant(["a"]), tf.constant([3], tf.uint32)
    too_many = [1] * (size + 1)
    calls = {
        "before": lambda: sdp.allreduce(whole, op=sdp.Sum, prescale_factor=0.5),
        "after": lambda: sdp.grouped_allreduce([whole], op=sdp.Max, postscale_factor=2.0),
        "slices": lambda: sdp.allreduce(slices, op=sdp.Sum, postscale_factor=0.5),
        "average": lambda: sdp.allreduce(slices),
        "strings": lambda: sdp.allreduce(["a"], op="sum"),
        "unsigned": lambda: sdp.allreduce(unsigned, op="sum"),
        "complex": lambda: sdp.allreduce(tf.constant([3], tf.complex64)),
        "scattered": lambda: sdp.reduce_scatter(tf.repeat(unsigned, size), op="sum"),
        "broadcast": lambda: sdp.broadcast(strings, 0),
        "gathered": lambda: sdp.allgather(strings),
        "exchanged": lambda: sdp.alltoall(strings, splits=[1]),
        "many": lambda: sdp.alltoall(rows, splits=too_many),
        "fractions": lambda: sdp.alltoall(rows, splits=[2.6] * size),
        "sum": lambda: sdp.alltoall(rows, splits=[4] * size),
        "negative": lambda: sdp.alltoall(rows, splits=[-1, 6][-size:] if size > 1 else [-5]),
        "function": lambda: tf.function(sdp.alltoall)(rows, tf.constant([4] * size)),
        "xla": lambda: tf.function(
            lambda: sdp.allgather(rows), jit_compile=True, autograph=False
        )(),
    }
    said = {}
    for name, call in calls.items():
        try:
            said[name] = f"passed: {call()}"
        except OptionError as error:
            said[name] = (*error.about, error.kind), str(error)
        except tf.errors.InvalidArgumentError as error:
            said[name] = error.message
    return said | {"next": sdp.allreduce([1.0, 3.0]).numpy().tolist()}


REFUSED = {
    "before": ("factor", "rounding"),
    "after": ("factor", "rounding"),
    "slices": ("factor", "rounding"),
    "average": ("op", "rounding"),
    "strings": ("tensor", "dtype"),
    "unsigned": ("tensor", "dtype"),
    "complex": ("tensor", "dtype"),
    "scattered": ("tensor", "dtype"),
    "broadcast": ("tensor", "dtype"),
    "gathered": ("tensor", "dtype"),
    "exchanged": ("tensor", "dtype"),
    "many": ("splits", "shape"),
    "fractions": ("splits", "dtype"),
    "xla": ("jit_compile", "option"),
}


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_wrong_is_refused_also_where_one_rank_is_alone(tf_world, size):
    """With what to do instead; the next collective works."""
    for said in tf_world.run(_refused, size=size):
        assert REFUSED == {name: said[name][0] for name in REFUSED}
        assert (
            "a tensor of dtype complex64 cannot be reduced with op='average': the supported dtypes"
            " are float16, bfloat16, float32, float64, int8, uint8, int16, int32, int64, bool."
            " Reduce tf.math.real() and tf.math.imag() of it separately."
        ) == said["complex"][1]
        assert "the sum of splits" in said["sum"]
        assert "a negative number" in said["negative"]
        assert "the sum of splits" in said["function"]
        assert [1.0, 3.0] == said["next"]


def _without_gradient(rank, size, name, op):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp
    from sagemaker_dist.errors import OptionError

    sdp.init()
    weight = tf.Variable([[1.0, 5.0], [3.0, 2.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(getattr(sdp, name)(weight, op=op))
    with pytest.raises(OptionError) as caught:
        tape.gradient(loss, weight)
    assert (("op",), "no_gradient") == (caught.value.about, caught.value.kind)


@pytest.mark.parametrize("op", ["max", "product"])
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter"])
@pytest.mark.parametrize("size", [1, 2])
def test_only_sums_and_averages_have_gradients(tf_world, name, op, size):
    """Else each rank would take another's for its own."""
    tf_world.run(_without_gradient, name, op, size=size)
