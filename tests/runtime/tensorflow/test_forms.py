# SPDX-License-Identifier: Apache-2.0
"""Which allreduce() a call means, and what is refused before anything is sent."""

import numpy as np
import pytest

import smdist.dataparallel.tensorflow as sdp
from sagemaker_dist.errors import OptionError
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp


@pytest.fixture(scope="module")
def forms():
    """Import with TensorFlow, once a test runs: it takes seconds of each process that collects."""
    from smdist.dataparallel.tensorflow import call_forms

    return call_forms


NOTHING = {"average": None, "op": None, "param_index": None, "num_params": None}


@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        ((), {}, ReduceOp.AVERAGE),
        ((), {"op": ReduceOp.MAX}, ReduceOp.MAX),
        ((), {"op": "sum"}, ReduceOp.SUM),
        ((True,), {}, ReduceOp.AVERAGE),
        ((False,), {}, ReduceOp.SUM),
        ((None,), {"op": ReduceOp.MIN}, ReduceOp.MIN),
        ((), {"average": False}, ReduceOp.SUM),
        ((3, 7), {}, ReduceOp.AVERAGE),
        ((3, 7), {"op": ReduceOp.SUM}, ReduceOp.SUM),
        ((3,), {"num_params": 7}, ReduceOp.AVERAGE),
        ((np.int64(3), np.int32(7)), {}, ReduceOp.AVERAGE),
        ((), {"param_index": 0, "num_params": 1}, ReduceOp.AVERAGE),
    ],
)
def test_each_form_is_known_by_its_arguments(forms, positional, named, expected):
    assert expected is forms.resolve(positional, NOTHING | named)


@pytest.mark.parametrize(
    ("positional", "named", "told"),
    [
        ((1,), {}, "param_index="),
        ((True, 1), {}, "param_index="),
        ((0, 1, 2), {}, "param_index="),
        ((0, 1), {"average": True}, "average beside"),
        ((np.bool_(True), 7), {}, "numbered from 0"),
        ((True,), {"op": ReduceOp.SUM}, "Keep op"),
        ((), {"param_index": 0}, "num_params None"),
        ((2, 2), {}, "numbered from 0"),
        ((), {"op": "avrage"}, "average"),
        ((), {"op": "adasum"}, "no such reduction"),
    ],
)
def test_a_call_that_could_be_either_is_refused(forms, positional, named, told):
    with pytest.raises(OptionError, match=told):
        forms.resolve(positional, NOTHING | named)


def test_the_order_of_smddp(forms):
    """compression and op stand behind index and number; the rest is left to resolve()."""
    unset = NOTHING | {"compression": sdp.Compression.none}
    given = (0, 1, sdp.Compression.fp16, ReduceOp.SUM)
    named = {"compression": sdp.Compression.fp16, "op": ReduceOp.SUM}

    assert ((0, 1), unset | named) == forms.with_last_named(given, unset)
    assert ((0, 1, 5), unset | named) == forms.with_last_named((*given, 5), unset)
    assert ((False,), unset) == forms.with_last_named((False,), unset)
    with pytest.raises(OptionError, match="op twice"):
        forms.with_last_named(given, unset | {"op": ReduceOp.SUM})
    with pytest.raises(OptionError, match="compression is 2"):
        sdp.allreduce([1.0], 0, 1, 2)


def test_names_of_sessions_say_what_to_use():
    with pytest.raises(OptionError, match="broadcast_variables"):
        sdp.broadcast_global_variables(0)
    with pytest.raises(OptionError, match="BroadcastGlobalVariablesCallback"):
        sdp.BroadcastGlobalVariablesHook(0)
    assert 3 == sdp.overlap(3)


def test_the_face_is_sorted_and_whole():
    import smdist.dataparallel.tensorflow.keras as face

    for module in (sdp, face):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
    assert not hasattr(sdp, "join")


@pytest.mark.parametrize("name", ["device_dense", "device_sparse"])
def test_devices_are_refused(name):
    with pytest.raises(OptionError, match=f"Leave {name} out"):
        sdp.allreduce([1.0], **{name: "/gpu:0"})


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"num_groups": 2}, "fusion_bytes"),
        ({"groups": [[1]]}, "fusion_bytes"),
        ({"compression": "fp16"}, "Compression.fp16"),
        ({"op": "median"}, "no such reduction"),
        ({"fusion_bytes": 5}, "fusion_bytes"),
        ({"op": ReduceOp.MIN}, "ReduceOp.AVERAGE or op=ReduceOp.SUM"),
        (
            {"kompression": 1},
            r"DistributedGradientTape\(\) got 'kompression'.*mean 'compression'\?",
        ),
        ({"op": ReduceOp.SUM, "gradient_predivide_factor": 2.0}, "predivide"),
    ],
)
def test_the_tape_refuses_what_has_no_meaning(asked, told):
    with pytest.raises(OptionError, match=told):
        sdp.DistributedGradientTape(None, **asked)
