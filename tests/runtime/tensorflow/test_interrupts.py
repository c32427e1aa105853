# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a collective that waits for another rank, and nothing that it does not wait for."""

import os
import signal
import threading
import time

import pytest
from engine_faults import fault_fields
from tf_ranks import meeting


def _interrupt_soon():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()


def _waits(rank, size, in_function):
    """Rank 1 comes when rank 0 has been interrupted.

    Its first call may still end with what rank 0 had sent before; later calls cannot.
    """
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    call = tf.function(sdp.allreduce) if in_function else sdp.allreduce
    call(tf.constant(1.0))
    if rank == 1:
        meeting().hear("interrupted")
        try:
            result = float(call(tf.constant(3.0)))
            return float(call(tf.constant(0.0))) if in_function else result
        except tf.errors.AbortedError as error:
            return str(error), fault_fields("kind", "culprit")
        finally:
            meeting().tell("came", None)
    _interrupt_soon()
    start = time.monotonic()
    try:
        call(tf.constant(1.0))
    except BaseException as error:
        meeting().tell("interrupted", None)
        meeting().hear("came")
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return None


def test_an_eager_collective_is_interrupted_and_its_result_dropped(tf_world):
    """The other rank notices nothing."""
    (said, seconds), other = tf_world.run(_waits, False, size=2)

    assert said.startswith("KeyboardInterrupt")
    assert 5 > seconds
    assert 2.0 == other


def test_a_function_that_waits_is_interrupted_and_others_hear_by_whom(tf_world):
    (said, seconds), (other, fault) = tf_world.run(_waits, True, size=2)

    assert "KeyboardInterrupt" in said  # within a RuntimeError of TensorFlow's
    assert 10 > seconds
    assert ("aborted", 0) == fault
    assert "Ctrl-C" in other


def _works(rank, size, handles_it):
    """An interrupt in a function that comes to its end, or one that the program handles."""
    import tensorflow as tf

    import smdist.dataparallel.tensorflow as sdp

    sdp.init()
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1)) if handles_it else None
    step = tf.function(sdp.allreduce)
    step(tf.constant(1.0))
    if rank == 1:
        time.sleep(2.5 if handles_it else 0.6)
        return float(step(tf.constant(3.0))), float(step(tf.constant(3.0)))
    _interrupt_soon()
    try:
        first = float(step(tf.constant(1.0)))
        heard += [] if handles_it else [time.sleep(5)]
    except KeyboardInterrupt:
        first, heard = 2.0, [1]
    if handles_it:
        signal.signal(signal.SIGINT, before)
    return first, float(step(tf.constant(1.0))), heard


@pytest.mark.parametrize("handles_it", [False, True])
def test_other_interrupts_leave_the_ranks_together(tf_world, handles_it):
    first, second = tf_world.run(_works, handles_it, size=2)

    assert ((2.0, 2.0, [1]), (2.0, 2.0)) == (first, second)


def _joined_and_left(rank, size):
    import smdist.dataparallel.tensorflow as sdp

    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs)
    sdp.init()
    kept = signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.raise_signal(signal.SIGUSR1)
    passed_on = os.read(ours, 1)[0]
    elsewhere = threading.Thread(target=sdp.shutdown)
    elsewhere.start()
    elsewhere.join()
    elsewhere = threading.Thread(target=sdp.init)
    elsewhere.start()
    elsewhere.join()
    sdp.shutdown()
    sdp.init()
    sdp.shutdown()
    signal.signal(signal.SIGUSR1, kept)
    return passed_on == signal.SIGUSR1, signal.set_wakeup_fd(before) != theirs


def test_who_listened_to_signals_before_goes_on_listening(tf_world):
    """Also where another thread joins or leaves."""
    assert [(True, True)] == tf_world.run(_joined_and_left, size=1)
