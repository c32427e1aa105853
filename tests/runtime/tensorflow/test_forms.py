# SPDX-License-Identifier: Apache-2.0
"""Which allreduce() a call means, and what is refused before anything is sent."""

from enum import Enum

import numpy as np
import pytest

import smdist.dataparallel.tensorflow as sdp
from sagemaker_dist.errors import OptionError

# The ReduceOp of the same name: its module imports TensorFlow, in each process that collects.
Op = Enum("Op", "AVERAGE SUM MIN MAX")


def with_reduce_ops(values):
    """Return these arguments with each Op replaced."""
    from smdist.dataparallel.tensorflow.reduce_op import ReduceOp

    return {
        name: ReduceOp[value.name] if isinstance(value, Op) else value
        for name, value in values.items()
    }


@pytest.fixture(scope="module")
def forms():
    """Import with TensorFlow, once a test runs: it takes seconds of each process that collects."""
    from smdist.dataparallel.tensorflow import call_forms

    return call_forms


NOTHING = {"average": None, "op": None, "param_index": None, "num_params": None}


@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        ((), {}, Op.AVERAGE),
        ((), {"op": Op.MAX}, Op.MAX),
        ((), {"op": "sum"}, Op.SUM),
        ((True,), {}, Op.AVERAGE),
        ((False,), {}, Op.SUM),
        ((None,), {"op": Op.MIN}, Op.MIN),
        ((), {"average": False}, Op.SUM),
        ((3, 7), {}, Op.AVERAGE),
        ((3, 7), {"op": Op.SUM}, Op.SUM),
        ((3,), {"num_params": 7}, Op.AVERAGE),
        ((np.int64(3), np.int32(7)), {}, Op.AVERAGE),
        ((), {"param_index": 0, "num_params": 1}, Op.AVERAGE),
    ],
)
def test_each_form_is_known_by_its_arguments(forms, positional, named, expected):
    (op,) = with_reduce_ops({"op": expected}).values()

    assert op is forms.resolve(positional, NOTHING | with_reduce_ops(named))


@pytest.mark.parametrize(
    ("positional", "named", "about", "kind"),
    [
        ((1,), {}, "param_index", "ambiguous"),
        ((True, 1), {}, "param_index", "ambiguous"),
        ((0, 1, 2), {}, "param_index", "ambiguous"),
        ((0, 1), {"average": True}, "average", "conflict"),
        ((np.bool_(True), 7), {}, "param_index", "option"),
        ((True,), {"op": Op.SUM}, "average", "conflict"),
        ((), {"param_index": 0}, "param_index", "option"),
        ((2, 2), {}, "param_index", "option"),
        ((), {"op": "avrage"}, "op", "unknown"),
    ],
)
def test_a_call_that_could_be_either_is_refused(forms, positional, named, about, kind):
    with pytest.raises(OptionError) as caught:
        forms.resolve(positional, NOTHING | with_reduce_ops(named))

    assert ((about,), kind) == (caught.value.about, caught.value.kind)


def test_an_ambiguous_call_is_explained(forms):
    with pytest.raises(OptionError) as caught:
        forms.resolve((1,), NOTHING)

    assert (
        "the call allreduce(tensor, 1) is ambiguous: SMDDP's call is allreduce(tensor, param_index,"
        " num_params), Horovod's is allreduce(tensor, average). Pass the arguments by name:"
        " param_index= and num_params=, or op=."
    ) == str(caught.value)


def test_the_order_of_smddp(forms):
    """compression and op stand behind index and number; the rest is left to resolve()."""
    unset = NOTHING | {"compression": sdp.Compression.none}
    named = with_reduce_ops({"compression": sdp.Compression.fp16, "op": Op.SUM})
    given = (0, 1, *named.values())

    assert ((0, 1), unset | named) == forms.name_last_arguments(given, unset)
    assert ((0, 1, 5), unset | named) == forms.name_last_arguments((*given, 5), unset)
    assert ((False,), unset) == forms.name_last_arguments((False,), unset)
    with pytest.raises(OptionError) as twice:
        forms.name_last_arguments(given, unset | {"op": named["op"]})
    with pytest.raises(OptionError) as wrong:
        sdp.allreduce([1.0], 0, 1, 2)

    assert (("op",), "conflict") == (twice.value.about, twice.value.kind)
    assert ("compression",) == wrong.value.about


def test_names_of_sessions_say_what_to_use():
    with pytest.raises(OptionError) as call:
        sdp.broadcast_global_variables(0)
    with pytest.raises(OptionError) as hook:
        sdp.BroadcastGlobalVariablesHook(0)

    assert (("broadcast_global_variables",), "unsupported") == (call.value.about, call.value.kind)
    assert isinstance(call.value, RuntimeError)  # which Horovod raises
    assert (("BroadcastGlobalVariablesHook",), "unsupported") == (hook.value.about, hook.value.kind)
    assert 3 == sdp.overlap(3)


def test_the_face_is_sorted_and_whole():
    import smdist.dataparallel.tensorflow.keras as face

    for module in (sdp, face):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
    assert not hasattr(sdp, "joins")


@pytest.mark.parametrize("name", ["device_dense", "device_sparse"])
def test_devices_are_refused(name):
    with pytest.raises(OptionError) as caught:
        sdp.allreduce([1.0], **{name: "/gpu:0"})

    assert (name,) == caught.value.about


@pytest.mark.parametrize(
    ("arguments", "about", "kind"),
    [
        ({"num_groups": -1}, "num_groups", "option"),
        ({"groups": "all"}, "groups", "option"),
        ({"compression": "fp16"}, "compression", "option"),
        ({"op": "median"}, "op", "unknown"),
        ({"op": Op.MIN}, "op", "option"),
        ({"kompression": 1}, "kompression", "unknown"),
        (
            {"op": Op.SUM, "gradient_predivide_factor": 2.0},
            "gradient_predivide_factor",
            "option",
        ),
    ],
)
def test_the_tape_refuses_arguments_that_it_does_not_support(arguments, about, kind):
    with pytest.raises(OptionError) as caught:
        sdp.DistributedGradientTape(None, **with_reduce_ops(arguments))

    assert ((about,), kind) == (caught.value.about, caught.value.kind)


def test_the_tape_checks_the_range_of_fusion_bytes():
    with pytest.raises(OptionError) as caught:
        sdp.DistributedGradientTape(None, fusion_bytes=5)

    assert ("fusion_bytes",) == caught.value.about


def test_an_unknown_argument_is_named_with_the_closest():
    with pytest.raises(OptionError) as caught:
        sdp.DistributedGradientTape(None, kompression=1)

    assert (
        "DistributedGradientTape() received the argument 'kompression': it has no such argument."
        " Did you mean 'compression'?"
    ) == str(caught.value)
