# SPDX-License-Identifier: Apache-2.0
"""The loss scale follows skipped and clean steps as SMP v1's arguments say."""

import pytest

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.torch.replicas.loss_scale import LossScale


def scales(steps, **arguments):
    """Return the scale after each step: "x" is skipped, "." is clean."""
    scale = LossScale.of(None, True, {"init_scale": 64, "scale_window": 3, **arguments})
    found = []
    for step in steps:
        scale.update(step == "x")
        found.append(scale.value)
    return found


@pytest.mark.parametrize(
    ("steps", "arguments", "expected"),
    [
        ("xx", {}, [32, 16]),
        ("...x", {}, [64, 64, 128, 64]),
        ("..x...", {}, [64, 64, 32, 32, 32, 64]),
        ("......", {"scale_factor": 4.0}, [64, 64, 256, 256, 256, 1024]),
        ("xxxx", {"min_scale": 16}, [32, 16, 16, 16]),
        ("xxx", {"delayed_shift": 2}, [64, 32, 16]),
        ("x.x", {"delayed_shift": 2}, [64, 64, 32]),
        ("x.x", {"delayed_shift": 2, "consecutive_hysteresis": True}, [64, 64, 64]),
        ("xx...x", {"delayed_shift": 2}, [64, 32, 32, 32, 64, 64]),
    ],
)
def test_dynamic_scale_follows_the_steps(steps, arguments, expected):
    assert expected == scales(steps, **arguments)


def test_defaults_are_those_of_smp():
    """A scale of 2**32, doubled after 1,000 clean steps."""
    scale = LossScale.of(1.0, True, None)
    for _ in range(1000):
        assert 2.0**32 == scale.value
        scale.update(False)

    assert 2.0**33 == scale.value


def test_static_scale_stays():
    scale = LossScale.of(128, False, None)
    scale.update(True)

    assert 128.0 == scale.value


def test_a_saved_scale_goes_on():
    """With its counters: one more clean step raises it."""
    one, other = (LossScale.of(None, True, {"init_scale": 64, "scale_window": 3}) for _ in "ab")
    for overflow in (True, False, False):
        one.update(overflow)
    other.load_state_dict(one.state_dict())
    other.update(False)

    assert 64.0 == other.value


@pytest.mark.parametrize(
    ("static", "dynamic", "arguments", "faults"),
    [
        (None, False, None, [("static_loss_scale",)]),
        (-1.0, False, None, [("static_loss_scale",)]),
        (float("inf"), False, None, [("static_loss_scale",)]),
        (True, False, None, [("static_loss_scale",)]),
        (2.0, True, None, [("static_loss_scale",)]),
        (1.0, "yes", None, [("dynamic_loss_scale",)]),
        (1.0, False, {"min_scale": 1}, [("dynamic_loss_args",)]),
        (
            None,
            True,
            {"scale_windows": 5, "min_scale": 0, "delayed_shift": 0, "scale_factor": 1.0},
            [
                ("dynamic_loss_args", "scale_windows"),
                ("dynamic_loss_args", "min_scale"),
                ("dynamic_loss_args", "delayed_shift"),
                ("dynamic_loss_args", "scale_factor"),
            ],
        ),
    ],
)
def test_wrong_arguments_are_named_at_once(static, dynamic, arguments, faults):
    with pytest.raises(OptionError) as caught:
        LossScale.of(static, dynamic, arguments)

    assert faults == [each.about for each in parts_of(caught.value)]
