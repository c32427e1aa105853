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
        said.append(str(caught.value))
    with pytest.raises(Exception, match=r"inside a tf\.function"):
        tf.function(lambda: sdp.allgather_object(1))()
    return said, sdp.allgather_object(rank)


def test_an_object_that_cannot_be_pickled_is_reported_on_all_ranks(tf_world):
    """The next collective works."""
    for rank, ((root, one, missing), after) in enumerate(tf_world.run(_wrong, size=2)):
        assert "broadcast_object() received an object on rank 0 that cannot be pickled" in root
        assert "allgather_object() received an object on rank 1 that cannot be pickled" in one
        assert ("the error on that rank has the reason" in root) == (rank != 0)
        assert "root_rank is 2" in missing
        assert [0, 1] == after


@pytest.mark.parametrize("name", ["join", "ProcessSet", "nccl_built", "cross_rank"])
@pytest.mark.parametrize("place", ["", ".keras"])
def test_absent_names_say_what_to_use(name, place):
    from importlib import import_module

    module = import_module(f"smdist.dataparallel.tensorflow{place}")
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': .+\. .+\.$"):
        getattr(module, name)
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
