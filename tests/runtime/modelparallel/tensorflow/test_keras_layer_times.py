# SPDX-License-Identifier: Apache-2.0
"""Layers are timed in turns, and have the values afterwards that they had before."""


def timed(_rank, _size, is_delayed):
    """Measure a model; return what is left of it, and the numbers of runs of its layers."""
    import keras
    import numpy as np
    from keras import layers

    from smdist.modelparallel.tensorflow.keras_capture import capture
    from smdist.modelparallel.tensorflow.keras_capture.delayed_values import (
        delay_param_initialization,
    )
    from smdist.modelparallel.tensorflow.keras_capture.delayed_values import (
        is_delayed as has_no_value,
    )
    from smdist.modelparallel.tensorflow.keras_planning import layer_timer, layer_times

    counts, order = {}, []
    run_once = layer_timer.LayerTimer.run_once

    def counted(timer):
        counts[timer._layer.name] = counts.get(timer._layer.name, 0) + 1
        order.append(timer._layer.name)
        run_once(timer)

    with delay_param_initialization(enabled=is_delayed):
        inputs = keras.Input([8])
        x = layers.Dense(16, name="first")(inputs)
        x = layers.BatchNormalization(name="norm")(x)
        model = keras.Model(inputs, layers.Dense(4, name="last")(x))
    program = capture(model, np.ones([4, 8], "float32"), training=True)
    before = [None if is_delayed else each.numpy() for each in model.variables]
    layer_timer.LayerTimer.run_once = counted
    try:
        costs = layer_times.measure(program)
    finally:
        layer_timer.LayerTimer.run_once = run_once
    kept = all(
        has_no_value(each) if value is None else np.array_equal(each.numpy(), value)
        for each, value in zip(model.variables, before, strict=True)
    )
    times = [costs.of(name).forward_seconds for name in ("first", "norm", "last")]
    return kept, counts, order[:6], all(each >= 0 for each in times), costs.source


def test_layers_take_turns_and_keep_their_values(keras_world):
    """Each layer has as many turns as the others; delayed variables have no values again."""
    for is_delayed in (False, True):
        [found] = keras_world.run(timed, is_delayed, size=1, deadline=60)
        kept, counts, order, has_times, source = found

        assert kept
        assert {"first", "norm", "last"} == set(counts)
        assert len(set(counts.values())) == 1
        assert ["first", "norm", "last"] * 2 == order
        assert has_times
        assert source == "measured"


def ended(_rank, _size):
    """Run turns whose time is over; return the number of runs that a layer had in them."""
    from contextlib import ExitStack

    import keras
    import numpy as np

    from smdist.modelparallel.tensorflow.keras_capture import capture
    from smdist.modelparallel.tensorflow.keras_planning.layer_times import LayerTurns, TimeBudget

    inputs = keras.Input([8])
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    program = capture(model, np.ones([4, 8], "float32"), training=True)
    step = next(each for each in program.steps if each.is_layer)
    ticks = []
    with ExitStack() as kept:
        turns = LayerTurns(kept)
        timer = turns.first_runs(step, program)
        turns.run(lambda: ticks.append(None), TimeBudget(0.0))
    return len(ticks), timer.seconds < float("inf")


def test_no_turn_begins_after_the_time_for_all_measurements(keras_world):
    """The first runs count by themselves then."""
    assert [(0, True)] == keras_world.run(ended, size=1, deadline=60)


def spent(_rank, _size):
    """Sleep, then compute; return whether a budget is left after each."""
    import time

    from smdist.modelparallel.tensorflow.keras_planning.layer_times import TimeBudget

    budget, short = TimeBudget(0.25), TimeBudget(0.05)
    time.sleep(0.3)
    after_sleep = budget.is_left(), short.is_left()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    return after_sleep, budget.is_left()


def test_waiting_spends_a_budget_five_times_as_slowly(keras_world):
    """Waiting is how a busy host looks; the wall time has a limit of five times the budget."""
    assert [((True, False), False)] == keras_world.run(spent, size=1, deadline=60)
