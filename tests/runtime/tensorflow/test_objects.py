# SPDX-License-Identifier: Apache-2.0
"""Python objects from rank to rank, and names of Horovod's that are not here."""

import pytest

from sagemaker_dist.errors import OptionError


def _objects(rank, size):
    import smdist.dataparallel.tensorflow as sdp
    import smdist.dataparallel.tensorflow.keras as hvd

    sdp.init()
    mine = {"rank": rank, "text": "x" * (rank * 1000)}
    return (
        sdp.broadcast_object(mine if rank == 1 else None, root_rank=1),
        hvd.broadcast_object(None),
        sdp.allgather_object(mine),
    )


@pytest.mark.parametrize("size", [1, 3])
def test_objects_come_in_the_order_of_ranks(tf_world, size):
    every = [{"rank": rank, "text": "x" * (rank * 1000)} for rank in range(3)]
    if size == 1:
        import smdist.dataparallel.tensorflow as sdp

        sdp.init()
        assert (7, [7]) == (sdp.broadcast_object(7), sdp.allgather_object(7))
        sdp.shutdown()
    else:
        assert [(every[1], None, every)] * 3 == tf_world.run(_objects, size=3)


def _wrong(rank, size):
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    said = []
    for call in (
        lambda: sdp.broadcast_object((lambda: 1) if rank == 0 else None),
        lambda: sdp.allgather_object((lambda: 1) if rank == 1 else 1),
        lambda: sdp.broadcast_object(1, root_rank=2),
    ):
        with pytest.raises(OptionError) as caught:
            call()
        said.append((caught.value.about, caught.value.kind, str(caught.value)))
    with pytest.raises(Exception, match=r"tf\.function"):  # AutoGraph makes it its own class
        tf.function(lambda: sdp.allgather_object(1))()
    return said, sdp.allgather_object(rank)


def test_an_object_that_cannot_be_pickled_is_reported_on_all_ranks(tf_world):
    """The next collective works."""
    (mine, first), (theirs, second) = tf_world.run(_wrong, size=2)

    for root, one, missing in (mine, theirs):
        assert (("broadcast_object",), "not_picklable") == root[:2]
        assert (("allgather_object",), "not_picklable") == one[:2]
        assert "rank 1" in one[2]
        assert (("root_rank",), "option") == missing[:2]
    assert "lambda" in mine[0][2]  # pickle's own reason, which only that rank has
    assert (
        "broadcast_object() received an object on rank 0 that cannot be pickled: the error on that"
        " rank has the reason. Pass an object that pickle supports, such as numbers, texts, lists,"
        " dicts and arrays."
    ) == theirs[0][2]
    assert [0, 1] == first == second


@pytest.mark.parametrize("place", ["", ".keras"])
def test_absent_names_show_similar_ones(place):
    from importlib import import_module

    module = import_module(f"smdist.dataparallel.tensorflow{place}")
    for name in ("stop_timeline", "start_timeline", "init"):
        assert callable(getattr(module, name))
    with pytest.raises(
        AttributeError, match=r"no attribute 'allreduc'\. Did you mean 'allreduce'\?"
    ):
        _ = module.allreduc
    with pytest.raises(AttributeError, match=r"no attribute 'anything'$"):
        _ = module.anything


def test_callbacks_that_are_nearly_called_so_are_told():
    from smdist.dataparallel.tensorflow.keras import callbacks

    with pytest.raises(AttributeError, match=r"Did you mean 'BroadcastGlobalVariablesCallback'\?"):
        _ = callbacks.BroadcastGlobalVariableCallback
